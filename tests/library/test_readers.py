"""One reader: gets, open reads, limits, expiry, errors and statistics."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from twisted.logger import LogLevel, capturedLogs

from kestrel.errors import QueueFailed
from kestrel.library import FullPolicy, JournaledQueue, JournaledQueueReaderConfig, QueueItem, Reader
from tests.library.journaled import START_MS, Program, config
from tests.programs import arrivals

# Gets.


def test_peek_leaves_the_item(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    waiting = arrivals(reader.peek(60))
    program.put(queue, b"one", b"two")
    assert waiting == [b"one"]
    assert program.result(reader.peek(0)).id == program.result(reader.get(0, peeking=True)).id == 1
    assert (reader.open_items, reader.counts.opened) == (0, 0)
    assert program.drain(reader) == [b"one", b"two"]


def test_calls_in_callbacks_keep_their_order(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    seen: list[tuple[int, bytes]] = []

    def waits(number: int) -> None:
        def got(item: QueueItem | None) -> None:
            assert item is not None
            seen.append((number, item.data))
            if number == 1:
                queue.put(b"second")
                waits(3)

        reader.get().addCallback(got)

    waits(1)
    waits(2)
    queue.put(b"first")
    queue.put(b"third")
    program.reactor.settle()
    assert seen == [(1, b"first"), (2, b"second"), (3, b"third")]


# Open reads.


def test_open_read_is_counted_until_commit_or_unget(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    program.put(queue, b"one", b"three")
    one, three = program.get(reader), program.get(reader)
    assert (reader.open_items, reader.open_bytes, reader.items, reader.bytes) == (2, 8, 2, 8)
    assert reader.commit(one.id)
    assert (reader.open_items, reader.open_bytes, reader.items) == (1, 5, 1)
    assert reader.unget(three.id)
    assert (reader.open_items, reader.open_bytes, reader.items) == (0, 0, 1)


def test_items_can_be_committed_out_of_order(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"1", b"2", b"3", b"4")
    reader = queue.reader()
    items = [program.get(reader) for _ in range(3)]
    assert reader.commit(items[2].id) and reader.commit(items[0].id)
    queue = program.restart(queue)
    assert program.drain(queue.reader()) == [b"2", b"4"]


def test_unget_returns_the_item_with_one_more_error(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    program.put(queue, b"one", b"two")
    item = program.get(reader)
    assert reader.unget(item.id)
    again = program.get(reader)
    assert (again.id, again.data, item.errors, again.errors) == (1, b"one", 0, 1)
    assert reader.unget(again.id)
    assert [program.get(reader).errors for _ in range(2)] == [2, 0]


@pytest.mark.parametrize("end", [Reader.commit, Reader.unget])
def test_read_that_is_not_open_cannot_be_ended(
    program: Program, queue: JournaledQueue, reader: Reader, end: Callable[[Reader, int], bool]
) -> None:
    program.put(queue, b"x")
    assert not end(reader, 1)
    item = program.get(reader)
    assert end(reader, item.id)
    assert not end(reader, item.id)
    assert not end(reader, 99)


def test_open_reads_return_after_a_restart_without_an_error(program: Program, queue: JournaledQueue) -> None:
    program.put(queue, b"one", b"two", b"three")
    for _ in range(2):
        program.get(queue.reader())
    queue = program.restart(queue)
    items = [program.get(queue.reader()) for _ in range(3)]
    assert [(item.id, item.data, item.errors) for item in items] == [(1, b"one", 0), (2, b"two", 0), (3, b"three", 0)]


# Errors.


def test_item_accepted_by_the_error_handler_is_removed(program: Program) -> None:
    seen: list[tuple[bytes, int]] = []

    def handler(item: QueueItem) -> bool:
        seen.append((item.data, item.errors))
        return item.errors >= 3

    queue, reader = program.reader(error_handler=handler)
    program.put(queue, b"x")
    for _ in range(3):
        assert reader.unget(program.get(reader).id)
    assert seen == [(b"x", 1), (b"x", 2), (b"x", 3)]
    assert program.result(reader.get(0)) is None
    queue = program.restart(queue)
    assert (queue.items, reader.counts.canceled, reader.counts.committed) == (0, 3, 0)


def test_item_stays_if_the_error_handler_raises(program: Program) -> None:
    def handler(item: QueueItem) -> bool:
        raise ValueError(item.data)

    queue, reader = program.reader(error_handler=handler)
    program.put(queue, b"x")
    with capturedLogs() as events:
        assert reader.unget(program.get(reader).id)
    assert [event["log_level"] for event in events] == [LogLevel.critical]
    assert program.get(reader).errors == 1


# Limits.


@pytest.mark.parametrize("limit", [{"max_items": 2}, {"max_size_bytes": 4}])
def test_full_reader_refuses_puts(program: Program, limit: dict[str, int]) -> None:
    queue, reader = program.reader(**limit)
    program.put(queue, b"123", b"456")
    assert (reader.can_put, queue.put(b"7")) == (False, None)
    item = program.get(reader)
    assert queue.put(b"7") is None  # an open read counts
    reader.commit(item.id)
    program.put(queue, b"7")
    assert program.drain(reader) == [b"456", b"7"]


@pytest.mark.parametrize("journaled", [True, False])
@pytest.mark.parametrize("limit", [{"max_items": 3}, {"max_size_bytes": 3}])
def test_drop_oldest_policy_keeps_the_newest_items(program: Program, limit: dict[str, int], journaled: bool) -> None:
    reader_config = JournaledQueueReaderConfig(full_policy=FullPolicy.DROP_OLDEST, **limit)  # type: ignore[arg-type]
    queue = program.queue(config(reader=reader_config, journaled=journaled))
    for number in range(9):
        program.put(queue, b"%d" % number)
    reader = queue.reader()
    assert (reader.items, reader.counts.discarded) == (3, 6)
    assert program.drain(reader) == [b"6", b"7", b"8"]


def test_open_read_is_never_dropped(program: Program) -> None:
    queue, reader = program.reader(full_policy=FullPolicy.DROP_OLDEST, max_items=1)
    program.put(queue, b"open")
    item = program.get(reader)
    program.put(queue, b"1", b"2")
    assert reader.items == 1
    assert reader.unget(item.id)
    assert program.drain(reader) == [b"open"]


def test_items_only_on_disk_are_dropped(program: Program) -> None:
    queue, _ = program.reader(max_memory_size_bytes=1)
    program.put(queue, *(b"%d" % number for number in range(9)))
    limit = JournaledQueueReaderConfig(full_policy=FullPolicy.DROP_OLDEST, max_items=3, max_memory_size_bytes=1)
    queue = program.restart(queue, config(reader=limit))
    program.put(queue, b"9")
    program.reactor.settle()
    assert program.drain(queue.reader()) == [b"7", b"8", b"9"]


def test_readers_have_separate_limits(program: Program) -> None:
    small = JournaledQueueReaderConfig(full_policy=FullPolicy.DROP_OLDEST, max_items=1)
    queue = program.queue(config(reader_configs={b"small": small}))
    readers = queue.reader(b"small"), queue.reader(b"large")
    program.put(queue, b"1", b"2", b"3")
    assert [program.drain(reader) for reader in readers] == [[b"3"], [b"1", b"2", b"3"]]


# Expiry.


def test_item_expires_at_its_expiry(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    queue.put(b"short", START_MS + 1000)
    queue.put(b"long")
    program.reactor.pass_time(0.999)
    assert program.result(reader.peek(0)).data == b"short"
    program.reactor.pass_time(0.001)
    assert program.drain(reader) == [b"long"]
    assert (reader.counts.expired, reader.items) == (1, 0)


def test_item_expires_at_its_expiry_or_maximum_age(program: Program) -> None:
    queue, reader = program.reader(max_age_ms=2000)
    queue.put(b"own", START_MS + 1000)
    queue.put(b"age", START_MS + 9000)
    queue.put(b"aged", add_ms=START_MS - 2000)
    program.reactor.pass_time(1)
    assert reader.commit(program.get(reader).id)
    assert reader.counts.expired == 1
    assert program.result(reader.get(0)) is None
    assert reader.counts.expired == 2


@pytest.mark.parametrize("limit", [None, 5])
def test_put_discards_expired_items_which_makes_room(program: Program, limit: int | None) -> None:
    queue, reader = program.reader(max_items=limit)
    program.put_expiring(queue, 5)
    program.reactor.pass_time(1)
    program.put(queue, b"new")
    assert (reader.items, reader.counts.expired) == (1, 5)
    assert program.drain(reader) == [b"new"]


def test_put_refused_after_a_restart_finds_expired_items_on_disk(program: Program) -> None:
    queue, _ = program.reader(max_items=2, max_age_ms=1000)
    program.put(queue, b"old", b"older")
    queue = program.restart(queue)
    program.reactor.pass_time(1)
    assert queue.put(b"new") is None
    program.reactor.settle()
    program.put(queue, b"newer")
    assert program.drain(queue.reader()) == [b"newer"]


def test_hook_is_called_for_each_expired_item(program: Program) -> None:
    processed: list[QueueItem] = []
    queue, reader = program.reader(process_expired_item=processed.append)
    queue.put(b"one", START_MS + 1000)
    queue.put(b"two", START_MS + 1000)
    program.reactor.pass_time(1)
    assert program.result(reader.get(0)) is None
    assert [(item.id, item.data, item.expiry_ms) for item in processed] == [
        (1, b"one", START_MS + 1000),
        (2, b"two", START_MS + 1000),
    ]


def test_hook_may_put_for_each_of_many_expired_items(program: Program) -> None:
    reader_config = JournaledQueueReaderConfig(process_expired_item=lambda item: queue.put(item.data))
    queue = program.queue(config(reader=reader_config, journaled=False))
    items = [b"%d" % number for number in range(5000)]
    for data in items:
        queue.put(data, START_MS + 1000)
    program.reactor.pass_time(1)
    waiting = arrivals(queue.reader().get())
    program.reactor.settle()
    assert waiting == [items[0]]
    assert program.drain(queue.reader()) == items[1:]


@pytest.mark.parametrize("end", [JournaledQueue.evict_waiters, JournaledQueue.close])
def test_hook_for_expired_items_may_end_the_get(program: Program, end: Callable[[JournaledQueue], object]) -> None:
    queue, reader = program.reader(process_expired_item=lambda item: end(queue))
    program.put(queue, b"stays")
    held = program.get(reader)
    queue.put(b"expires", START_MS + 1000)
    program.reactor.pass_time(1)
    seen = arrivals(reader.get())
    program.reactor.settle()
    assert (seen, reader.items) == ([None], 1)
    assert queue.is_closed or reader.commit(held.id)


def test_put_to_reader_full_of_expired_items_is_accepted(program: Program) -> None:
    queue, reader = program.reader(max_items=1000)
    program.put_expiring(queue, 1000)
    assert queue.put(b"too much") is None
    program.reactor.pass_time(1)
    program.put(queue, b"new")
    assert program.drain(reader) == [b"new"]


def test_hook_for_expired_items_that_raises_is_logged(program: Program) -> None:
    def process(item: QueueItem) -> None:
        raise ValueError(item.data)

    queue, reader = program.reader(process_expired_item=process)
    queue.put(b"x", START_MS + 1000)
    program.reactor.pass_time(1)
    with capturedLogs() as events:
        assert program.result(reader.discard_expired()) == 1
    assert [event["log_level"] for event in events] == [LogLevel.critical]


def test_sweep_limit_applies_unless_disabled(program: Program) -> None:
    queue, reader = program.reader(max_expire_sweep=3)
    program.put_expiring(queue, 10)
    program.reactor.pass_time(1)
    assert program.result(reader.discard_expired()) == 3
    assert program.result(reader.discard_expired(applies_limit=False)) == 7
    assert program.result(reader.discard_expired(applies_limit=False)) == 0


def test_long_sweep_yields_to_the_reactor(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    program.put_expiring(queue, 1000)
    program.reactor.pass_time(1)
    swept = arrivals(reader.discard_expired())
    assert swept == [] and 0 < reader.counts.expired < 1000
    program.reactor.settle()
    assert swept == [1000]


def test_get_discards_all_expired_items_despite_the_sweep_limit(program: Program) -> None:
    queue, reader = program.reader(max_expire_sweep=1)
    program.put_expiring(queue, 300)
    queue.put(b"stays")
    program.reactor.pass_time(1)
    assert program.drain(reader) == [b"stays"]
    assert reader.counts.expired == 300


def test_expired_items_only_on_disk_are_discarded(program: Program) -> None:
    queue, reader = program.reader(max_memory_size_bytes=1)
    program.put_expiring(queue, 9)
    program.put(queue, b"stays")
    program.reactor.pass_time(1)
    assert program.result(reader.discard_expired()) == 9
    assert program.drain(reader) == [b"stays"]


def test_empty_reader_expires_after_its_maximum_age(program: Program) -> None:
    queue, reader = program.reader(max_queue_age_ms=1000)
    program.reactor.pass_time(1)
    assert not reader.is_ready_for_expiration
    program.reactor.pass_time(0.001)
    assert reader.is_ready_for_expiration
    program.put(queue, b"x")
    assert not reader.is_ready_for_expiration
    program.drain(reader)
    assert reader.is_ready_for_expiration


# Statistics and hooks.


def test_puts_gets_and_ends_of_reads_are_counted(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    assert program.result(reader.get(0)) is None
    program.put(queue, b"one", b"two")
    first = program.get(reader)
    reader.unget(first.id)
    reader.commit(program.get(reader).id)
    program.get(reader)
    counts = reader.counts
    assert (counts.puts, counts.put_bytes, counts.get_hits, counts.get_misses) == (2, 6, 3, 1)
    assert (counts.opened, counts.committed, counts.canceled) == (3, 1, 1)


def test_age_is_that_of_the_head(program: Program, queue: JournaledQueue, reader: Reader) -> None:
    assert reader.age_ms == 0
    program.put(queue, b"one")
    program.reactor.pass_time(2)
    program.put(queue, b"two")
    assert reader.age_ms == 2000
    program.get(reader)
    assert reader.age_ms == 0


def test_latency_hooks_get_the_waiting_times(program: Program) -> None:
    told: list[tuple[str, Reader, int]] = []
    queue, reader = program.reader(
        delivery_latency=lambda reader, ms: told.append(("item", reader, ms)),
        timeout_latency=lambda reader, ms: told.append(("consumer", reader, ms)),
    )
    reader.get(3)
    program.reactor.pass_time(3)
    program.put(queue, b"x")
    program.reactor.pass_time(2)
    program.get(reader)
    assert told == [("consumer", reader, 3000), ("item", reader, 2000)]


def test_latency_of_an_item_from_the_future_is_zero(program: Program) -> None:
    told: list[int] = []
    queue, reader = program.reader(delivery_latency=lambda reader, ms: told.append(ms))
    queue.put(b"x", add_ms=START_MS + 5000)
    assert reader.age_ms == 0
    program.get(reader)
    assert told == [0]


def test_cancel_in_latency_hook_does_not_lose_item(program: Program) -> None:
    queue, reader = program.reader(delivery_latency=lambda reader, ms: get.cancel())
    get = reader.get()
    given = arrivals(get)
    program.put(queue, b"x")
    assert (given, reader.open_items) == ([b"x"], 1)


# Failures.


def test_failed_write_returns_the_safe_items_to_every_reader(program: Program, queue: JournaledQueue) -> None:
    a, b = queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"one", b"two")
    of_a, of_b = program.get(a), program.get(b)
    program.disk.fail("write", errno.EIO, times=1)
    assert a.commit(of_a.id)
    with pytest.raises(QueueFailed):
        program.result(a.checkpoint())
    with pytest.raises(QueueFailed):
        b.commit(of_b.id)
    assert not b.commit(of_b.id)
    assert [program.drain(reader) for reader in (a, b)] == [[b"one", b"two"]] * 2


def test_waiters_survive_a_failed_write(program: Program, queue: JournaledQueue) -> None:
    readers = queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"x")
    for reader in readers:
        program.drain(reader)
    waiting = [arrivals(reader.get(60)) for reader in readers]
    queue.flush()
    program.disk.fail("write", errno.EIO, times=1)
    lost = queue.put(b"lost")
    assert lost is not None
    with pytest.raises(QueueFailed):
        program.result(lost)
    assert waiting == [[b"lost"], [b"lost"]]  # items are given before they are safe
    waiting = [arrivals(reader.get(60)) for reader in readers]
    with pytest.raises(QueueFailed):
        program.result(queue.checkpoint())
    program.put(queue, b"later")
    assert waiting == [[b"later"], [b"later"]]


def test_waiters_get_items_that_return_after_a_failed_write(program: Program, queue: JournaledQueue) -> None:
    a, b = queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"x")
    of_a, _ = program.get(a), program.get(b)
    waiting = [arrivals(reader.get(60)) for reader in (a, b)]
    program.disk.fail("write", errno.EIO, times=1)
    assert a.commit(of_a.id)
    program.reactor.settle()
    assert waiting == [[b"x"], [b"x"]]
    with pytest.raises(QueueFailed):
        program.result(queue.checkpoint())


def test_waiters_fail_if_the_queue_cannot_be_opened_again(program: Program, queue: JournaledQueue) -> None:
    a, b = queue.reader(b"a"), queue.reader(b"b")
    program.put(queue, b"x")
    of_a, _ = program.get(a), program.get(b)
    waiting = [arrivals(reader.get()) for reader in (a, b)]
    program.disk.fail("write", errno.EIO)
    program.disk.fail("read", errno.EIO)
    assert a.commit(of_a.id)
    with capturedLogs() as events:
        program.reactor.settle()
    assert [[type(error) for error in seen] for seen in waiting] == [[QueueFailed], [QueueFailed]]
    failed = {event["queue"] for event in events if "cannot be opened" in event["log_format"]}
    assert failed == {"work+a", "work+b"}
    program.disk.mend()
    assert [program.drain(reader) for reader in (a, b)] == [[b"x"], [b"x"]]
    with pytest.raises(QueueFailed):
        program.result(queue.checkpoint())


def test_failed_sweep_can_be_repeated(program: Program) -> None:
    queue, reader = program.reader(max_memory_size_bytes=1)
    program.put_expiring(queue, 9)
    program.result(queue.checkpoint())
    program.reactor.pass_time(1)
    program.disk.fail("read", errno.EIO)
    with pytest.raises(QueueFailed):
        program.result(reader.discard_expired())
    program.disk.mend()
    program.result(reader.discard_expired())
    assert (reader.counts.expired, reader.items) == (9, 0)
