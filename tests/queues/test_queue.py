"""One queue: its waiters, its expiry, and loads and failures of its storage."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from zope.interface import implementer_only

from kestrel.config.load import loads
from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError, QueueFailed, StorageError, TooFewOpenReads
from kestrel.item import Item
from kestrel.journal.records import decode_item
from kestrel.queues.waiters import ItemArrived, Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.server import MemoryServer
from kestrel.testing.storage import SteppedQueue, SteppedStorage
from tests.memcache_text import END, STORED, set_, value
from tests.promises.slow_server import SlowServer

Answer = bytes | str | None


class Bench:
    """The queue "work" of a server over a stepped storage, and the answers to waiters."""

    def __init__(self, storage: SteppedStorage | None = None) -> None:
        self.storage = storage or SteppedStorage()
        self.server = MemoryServer(self.storage)
        self.queue = self.server.manager.queue(b"work")
        self.tick = self.server.settle
        self.tick()
        self.answers: list[tuple[str, Answer]] = []

    @property
    def store(self) -> SteppedQueue:
        assert isinstance(self.queue.store, SteppedQueue)
        return self.queue.store

    def in_ms(self, ms: int) -> int:
        """Return the time in so many milliseconds."""
        return self.server.now_ms() + ms

    def pass_ms(self, ms: int) -> None:
        """Step the wall clock."""
        self.server.step_wall_clock(ms)

    def put_one(self, data: bytes, expiry_ms: int = 0) -> Batch:
        batch = self.server.manager.put(b"work", data, expiry_ms)
        assert batch is not None
        return batch

    def put(self, *items: bytes, expiry_ms: int = 0) -> None:
        for data in items:
            self.put_one(data, expiry_ms)
        self.tick()

    def put_on_disk(self, *items: bytes, expiry_ms: int = 0) -> None:
        """Put items, and drop all items from memory."""
        self.put(*items, expiry_ms=expiry_ms)
        self.store.page_out()

    def fail_commit(self, message: str = "disk failed") -> None:
        """Commit, and let that fail."""
        self.storage.holds_commits = True
        self.tick()
        self.storage.end_commits(error=StorageError(message))
        self.storage.holds_commits = False

    def join(self, name: str, *, is_blocking: bool = True) -> Waiter:
        """Add a waiter; its answer is recorded under this name."""

        def on_result(item: Item | None, error: Exception | None) -> None:
            self.answers.append((name, str(error) if error is not None else None if item is None else item.data))

        waiter = Waiter(on_result, opens=False, peeks=False, is_blocking=is_blocking)
        self.queue.join(waiter)
        return waiter

    def join_with(self, on_result: ItemArrived, is_blocking: bool = True) -> None:
        """Add a waiter with this callback."""
        self.queue.join(Waiter(on_result, opens=False, peeks=False, is_blocking=is_blocking))

    def items(self) -> list[bytes]:
        """Take the items of the queue, head first."""
        found = []
        while (item := self.queue.take_now(opens=False)) is not None:
            found.append(item.data)
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Puts and gets.


def test_waiters_come_before_immediate_gets_and_peeks(bench: Bench) -> None:
    bench.put_on_disk(b"one")
    bench.join("first", is_blocking=False)
    bench.queue.flush()
    bench.put(b"two")
    assert bench.store.peek() is not None
    assert bench.queue.take_now(opens=False) is None
    assert bench.queue.peek_now() is None
    bench.store.end_fill()
    assert bench.answers == [("first", b"two")]


def test_readers_wait_for_latest_unsafe_batch(bench: Bench) -> None:
    assert bench.queue.unsettled_batch is None
    bench.storage.holds_commits = True
    first = bench.put_one(b"one", 0)
    assert bench.queue.unsettled_batch is first
    bench.tick()
    assert bench.queue.unsettled_batch is first
    second = bench.put_one(b"two", 0)
    assert bench.queue.unsettled_batch is second
    bench.storage.end_commits()
    bench.tick()
    bench.storage.end_commits()
    assert bench.queue.unsettled_batch is None


# Callbacks that use the queue.


def test_item_put_by_a_callback_reaches_the_next_waiter(bench: Bench) -> None:
    bench.put_on_disk(b"gone")
    bench.join_with(lambda item, error: bench.put(b"one"), is_blocking=False)
    bench.join("next")
    bench.queue.flush()
    bench.store.end_fill()
    assert bench.answers == [("next", b"one")]


@pytest.mark.parametrize("is_blocking", [True, False])
def test_waiter_that_left_in_a_callback_is_not_answered(bench: Bench, is_blocking: bool) -> None:
    bench.put_on_disk(b"gone")
    bench.join_with(lambda item, error: bench.queue.waiters.leave(second), is_blocking=is_blocking)
    second = bench.join("second", is_blocking=is_blocking)
    bench.queue.flush()
    bench.queue.answer_all() if is_blocking else bench.store.end_fill()
    assert bench.answers == []


# Expiry.


@pytest.mark.parametrize(("expiry_ms", "max_age_ms"), [(500, None), (0, 500)])
def test_item_expires_just_after_its_time(bench: Bench, expiry_ms: int, max_age_ms: int | None) -> None:
    bench.queue.use_settings(QueueSettings(max_age_ms=max_age_ms))
    bench.put(b"one", expiry_ms=bench.in_ms(expiry_ms) if expiry_ms else 0)
    bench.pass_ms(500)
    assert bench.queue.head.sweep() == 0
    bench.pass_ms(1)
    assert bench.queue.head.sweep() == 1
    assert bench.queue.counters.expired_items == 1


def test_placeholders_are_dropped_and_neither_moved_nor_counted(bench: Bench) -> None:
    bench.queue.use_settings(QueueSettings(expire_to_queue=b"elsewhere"))
    bench.storage.put((bench.store,), b"", 0, 1)
    bench.put(b"one")
    bench.queue.head.sweep()
    assert bench.server.manager.known(b"elsewhere") is None
    assert (bench.queue.counters.expired_items, bench.store.items) == (0, 1)


def test_sweep_is_recorded(bench: Bench) -> None:
    bench.put(b"a", expiry_ms=bench.in_ms(500))
    bench.pass_ms(1000)
    assert bench.queue.open_batch is None
    bench.queue.head.sweep()
    assert bench.queue.open_batch is not None


# Waiters.


def test_put_from_callback_serves_the_next_waiter(bench: Bench) -> None:
    bench.join_with(lambda item, error: bench.put(b"from the answer"))
    bench.join("next")
    bench.put(b"one")
    assert bench.answers == [("next", b"from the answer")]


def test_waiter_removed_by_callback_of_another_is_not_called(bench: Bench) -> None:
    second: Waiter

    def first_answered(item: Item | None, error: Exception | None) -> None:
        bench.queue.waiters.leave(second)

    bench.join_with(first_answered)
    second = bench.join("second")
    bench.put(b"one", b"two")
    assert bench.answers == []
    assert bench.items() == [b"two"]


# Heads that are not in memory.


def test_head_is_not_loaded_without_a_waiter(bench: Bench) -> None:
    bench.put_on_disk(b"one")
    bench.queue.take_now(opens=False)
    bench.queue.head.sweep()
    assert not bench.store.is_filling


def test_items_put_after_flush_during_load_are_served(bench: Bench) -> None:
    bench.put_on_disk(b"one")
    bench.join("a", is_blocking=False)
    bench.queue.flush()
    bench.put(b"two")
    bench.store.end_fill()
    assert bench.answers == [("a", b"two")]


def test_internal_fault_of_a_load_is_an_error_to_waiters(bench: Bench) -> None:
    errors: list[Exception | None] = []
    bench.put_on_disk(b"one")
    bench.join_with(lambda item, error: errors.append(error))
    bench.store.end_fill(ValueError("a fault of the backend"))
    assert [isinstance(error, KestrelError) for error in errors] == [True]


def test_load_of_failed_store_blocks_no_waiter(bench: Bench) -> None:
    bench.put(b"safe")
    dead = bench.store
    dead.page_out()
    bench.join("a", is_blocking=False)
    bench.put_one(b"lost", 0)
    bench.fail_commit()
    assert bench.store is not dead
    assert bench.answers == [("a", b"safe")]
    bench.join("b")
    dead.end_fill(QueueFailed("disk failed"))
    bench.put(b"next")
    assert bench.answers[1:] == [("b", b"next")]


# Discarding.


def test_discard_with_unreadable_head_is_made_up_later(tmp_path: Path) -> None:
    limits = "maxItems = 20\nmaxMemorySize = 300\ndiscardOldWhenFull = true"
    server = SlowServer(tmp_path / "queues", loads(f"[[queues]]\nname = 'work'\n{limits}"))
    client, reader = server.connect(), server.connect()
    datas = [b"%02d" % number * 50 for number in range(24)]
    for data in datas[:20]:
        assert server.ask(client, set_(b"work", data)) == STORED
    for data in datas[:3]:
        assert reader.ask(b"get work\r\n") == value(b"work", data), "all items that were in memory"
    assert client.ask(b"".join(set_(b"work", data) for data in datas[20:23])) == STORED * 3
    server.disk.fail("read", errno.EIO, times=1)
    assert client.ask(set_(b"work", datas[23])) == STORED, "the head is to be discarded, and is only on disk"
    server.end_threads()
    assert server.ask(reader, b"get work\r\n" * 21) == b"".join(value(b"work", data) for data in datas[4:]) + END
    queue = server.manager.queue(b"work")
    assert queue.counters.discarded == 1


def test_queue_discards_all_excess_before_it_serves_items(bench: Bench) -> None:
    bench.put(*(b"%d" % number for number in range(2000)))
    bench.queue.use_settings(QueueSettings(max_items=10, discard_old_when_full=True))
    bench.put_one(b"2000")
    assert bench.store.items > 1000, "this takes more than one time slice"
    assert bench.queue.take_now(opens=False) is None
    bench.join("waiter", is_blocking=False)
    bench.tick()
    assert bench.answers == [("waiter", b"1991")]
    assert bench.queue.counters.discarded == 1991


# A failing storage.


@pytest.mark.parametrize("opens", [False, True])
def test_reopened_queue_gives_no_item_that_expires_meanwhile(bench: Bench, opens: bool) -> None:
    bench.put(b"old", expiry_ms=bench.in_ms(500))
    bench.queue.flush()
    bench.fail_commit()
    bench.tick()
    assert bench.store.items == 1
    bench.pass_ms(1000)
    assert bench.queue.take_now(opens) is None
    assert bench.queue.counters.expired_items == 1


# Confirming a read and putting an item, with and without support of the storage for both at once.


@implementer_only(IQueueStorage)
class PlainQueue(SteppedQueue):
    """A queue whose storage cannot do both at once."""


class PlainStorage(SteppedStorage):
    """A storage of `PlainQueue`s."""

    def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
        if name not in self._queues:
            self._queues[name] = PlainQueue(name)
        return super().queue(name, settings)


@pytest.fixture
def plain() -> Bench:
    return Bench(PlainStorage())


def take_open_read(bench: Bench, *items: bytes) -> int:
    """Put these items, open a read of the first, and return its id."""
    bench.put(*items)
    item = bench.queue.take_now(opens=True)
    assert item is not None
    bench.queue.add_open_read(item)
    bench.tick()
    return item.xid


def test_continue_confirms_and_puts_in_one_batch(bench: Bench) -> None:
    xid = take_open_read(bench, b"first")
    bench.storage.holds_commits = True
    batch = bench.queue.continue_(xid, b"next", 0)
    assert bench.store.open_reads == 0
    bench.tick()
    assert batch is not None and not batch.is_settled
    bench.storage.end_commits()
    assert (batch.is_settled, batch.failure) == (True, None)
    assert bench.items() == [b"next"]
    assert bench.queue.counters.total_items == 2


def test_continue_without_storage_support_confirms_after_put_is_safe(plain: Bench) -> None:
    xid = take_open_read(plain, b"first")
    plain.storage.holds_commits = True
    batch = plain.queue.continue_(xid, b"next", 0)
    assert batch is not None and xid not in plain.queue.open_read_table
    plain.tick()
    assert (plain.store.items, plain.store.open_reads) == (1, 1)
    plain.storage.end_commits()
    assert (plain.store.open_reads, batch.is_settled) == (0, False)
    plain.tick()
    plain.storage.end_commits()
    assert (batch.is_settled, batch.failure) == (True, None)
    assert plain.items() == [b"next"]


def test_read_stays_open_if_the_put_is_lost(plain: Bench) -> None:
    xid = take_open_read(plain, b"first")
    plain.storage.holds_commits = True
    batch = plain.queue.continue_(xid, b"next", 0)
    plain.tick()
    plain.storage.end_commits(error=StorageError("disk failed"))
    assert batch is not None and str(batch.failure) == "disk failed"
    assert plain.items() == [b"first"]


def test_read_returns_if_item_for_another_queue_is_lost(plain: Bench) -> None:
    xid = take_open_read(plain, b"first")
    elsewhere = Batch()
    batch = plain.queue.confirm_after(elsewhere, xid)
    elsewhere.settle(StorageError("disk failed"))
    assert (batch.is_settled, str(batch.failure)) == (True, "disk failed")
    assert plain.items() == [b"first"]


def test_lost_confirm_is_reported(plain: Bench) -> None:
    xid = take_open_read(plain, b"first")
    plain.storage.holds_commits = True
    batch = plain.queue.continue_(xid, b"next", 0)
    plain.tick()
    plain.storage.end_commits()
    plain.tick()
    plain.storage.end_commits(error=StorageError("disk failed"))
    assert batch is not None and str(batch.failure) == "disk failed"
    assert plain.items() == [b"first", b"next"]


@pytest.mark.parametrize("make", [SteppedStorage, PlainStorage])
def test_item_refused_by_limit_confirms_no_read(make: Callable[[], SteppedStorage]) -> None:
    bench = Bench(make())
    bench.queue.use_settings(QueueSettings(max_items=1))
    xid = take_open_read(bench, b"first")
    bench.put(b"second")
    assert bench.queue.continue_(xid, b"next", 0) is None
    assert (bench.store.items, bench.store.open_reads, xid in bench.queue.open_read_table) == (1, 1, True)


@pytest.mark.parametrize("make", [SteppedStorage, PlainStorage])
def test_read_that_is_not_open_puts_no_item(make: Callable[[], SteppedStorage]) -> None:
    bench = Bench(make())
    xid = take_open_read(bench, b"first")
    bench.queue.abort([xid])
    with pytest.raises(TooFewOpenReads):
        bench.queue.continue_(xid, b"next", 0)
    assert bench.items() == [b"first"]


# Counters.


def test_flushes_are_counted_and_reset_the_age(bench: Bench) -> None:
    bench.put(b"one", b"two")
    bench.pass_ms(250)
    bench.queue.take_now(opens=False)
    assert bench.queue.counters.age_ms == 250
    bench.queue.flush()
    assert (bench.queue.counters.total_flushes, bench.queue.counters.age_ms) == (1, 0)


def test_age_is_not_negative_after_clock_is_set_back(bench: Bench) -> None:
    bench.put(b"one")
    bench.pass_ms(-1000)
    bench.queue.take_now(opens=False)
    assert bench.queue.counters.age_ms == 0


def test_discards_after_load_of_head_are_committed(bench: Bench) -> None:
    bench.queue.use_settings(QueueSettings(max_items=2, discard_old_when_full=True))
    bench.put_on_disk(b"one", b"two")
    bench.put(b"three")
    bench.store.end_fill()
    bench.tick()
    assert [decode_item(record).data for record in bench.store.safe] == [b"two", b"three"]


def test_stop_counts_failure_of_item_waiting_to_move(bench: Bench) -> None:
    bench.queue.use_settings(QueueSettings(max_redeliveries=1, error_queue=b"bad"))
    bench.put(b"one", b"two")
    for _ in range(2):
        item = bench.queue.take_now(opens=True)
        assert item is not None
        bench.queue.add_open_read(item)
    bench.queue.abort([1, 2])
    bench.queue.stop()
    assert bench.store.open_reads == 0
    bench.tick()
    assert bench.server.manager.known(b"bad") is None
    left = [bench.store.take(False), bench.store.take(False)]
    assert [(item.data, item.errors) for item in left if item is not None] == [(b"one", 1), (b"two", 1)]


def test_queue_keeps_its_storage_if_that_cannot_delete_it() -> None:
    class Undeletable(SteppedStorage):
        def delete(self, queue: SteppedQueue) -> None:
            raise StorageError("the queue cannot be deleted")

    bench = Bench(Undeletable())
    with pytest.raises(StorageError):
        bench.queue.use_storage(SteppedStorage())
    bench.put(b"a")
    assert bench.queue.storage is bench.storage
    assert bench.items() == [b"a"]


def test_tick_of_the_hub_reads_the_wall_clock_once(bench: Bench) -> None:
    start_ms = bench.in_ms(0)

    def two_readings() -> list[int]:
        """Return two readings since the start, between which 5 ms pass."""
        first_ms = bench.server.manager.now_ms()
        bench.pass_ms(5)
        return [first_ms - start_ms, bench.server.manager.now_ms() - start_ms]

    assert two_readings() == [0, 5]
    bench.server.barrier.begin_tick()
    assert two_readings() == [5, 5]
    bench.server.barrier.end_of_tick()
    assert bench.server.manager.now_ms() - start_ms == 10
    bench.server.barrier.begin_tick()
    assert two_readings() == [10, 10]
