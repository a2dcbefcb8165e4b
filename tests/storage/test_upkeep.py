"""Rotation, rewriting and packing of files, items beyond the memory, and compaction at a stop.

Tests of queues run on every durable backend, tests of files on the journal.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.errors import QueueFailed
from kestrel.storage.journal.maintenance import FREE_INLINE_RECORDS, RETRY_S
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.storage import JournalStorage
from tests.storage.backends import Backend, MakeStorage, journal_only
from tests.storage.storage_harness import NOW_MS, StorageHarness, each_pack_step

MEMORY_BYTES = 1000
MAX_JOURNAL_BYTES = 5000
DATA_BYTES = 100
RECORD_BYTES = DATA_BYTES + 21
CHECKSUM_BYTES = 9
"""Size of the CHECKSUM record in the reader file of a scroll."""

SMALL = {
    "max_memory_size_bytes": MEMORY_BYTES,
    "max_journal_size_bytes": MAX_JOURNAL_BYTES,
    "default_journal_size_bytes": 2000,
    "min_journal_compact_delay_ms": None,
}


class NumberedQueue(StorageHarness):
    """A storage whose items are numbers, and which commits after each operation of `put_next` and `get`."""

    def __init__(self, *arguments: object, make_storage: MakeStorage = JournalStorage, **options: object) -> None:
        super().__init__(*arguments, make_storage=make_storage, **options)
        self.is_journal = make_storage is JournalStorage
        self.next_number = 0
        self._commits = 0

    def commit(self) -> QueueFailed | None:
        self._commits += 1
        return super().commit()

    def put_next(self, count: int = 1) -> None:
        """Put the next numbers, and commit each."""
        for _ in range(count):
            self.put(b"%0*d" % (DATA_BYTES, self.next_number))
            self.next_number += 1
            assert self.commit() is None

    def get(self, count: int = 1, opened: bool = False) -> list[int]:
        """Take items, and commit each. Return their numbers."""
        numbers = []
        for _ in range(count):
            numbers.append(int(self.take(opened).data))
            assert self.commit() is None
        return numbers

    def get_all(self) -> list[int]:
        """Take all items, and close the storage. Return their numbers."""
        numbers = self.get(self.queue.items)
        self.close()
        return numbers

    def fail_queue(self) -> None:
        """Let the write of a put fail."""
        self.disk.fail("write", errno.EIO, times=1)
        self.put(b"0" * DATA_BYTES)
        assert self.commit() is not None

    def files(self) -> dict[str, int]:
        """Return the sizes of the queue's files."""
        return {path.name: path.stat().st_size for path in self.folder.iterdir() if path.is_file()}

    def rotated(self) -> list[str]:
        return sorted(name for name in self.files() if name.startswith("work."))

    @property
    def max_file_bytes(self) -> int:
        """The most bytes that the files of the present items may take."""
        checksums = 0 if self.is_journal else CHECKSUM_BYTES * self._commits
        return 2 * self.queue.items * RECORD_BYTES + MAX_JOURNAL_BYTES + MEMORY_BYTES + checksums


def numbered_queue(tmp_path: Path, make_storage: MakeStorage = JournalStorage, **options: object) -> NumberedQueue:
    """Return a started storage with small limits, except for these options."""
    settings = QueueSettings(**{**SMALL, **options})
    return NumberedQueue(tmp_path / "queues", settings, make_storage=make_storage).start()


@pytest.fixture
def bench(tmp_path: Path, backend: Backend) -> Iterator[NumberedQueue]:
    bench = numbered_queue(tmp_path, backend.make)
    yield bench
    bench.close()


# Rotation and memory.


@journal_only
def test_file_larger_than_the_memory_is_rotated(bench: NumberedQueue) -> None:
    bench.put_next(8)
    assert bench.rotated() == []
    bench.put_next()
    assert (len(bench.rotated()), bench.files()["work"]) == (1, 0)
    assert bench.queue.stats["journal_rotations"] == 1


def test_backlog_is_delivered_in_order_within_the_memory_limit(bench: NumberedQueue) -> None:
    bench.put_next(200)
    assert (bench.queue.items, bench.queue.bytes) == (200, 200 * DATA_BYTES)
    assert (bench.queue.mem_items, bench.queue.mem_bytes) == (MEMORY_BYTES // DATA_BYTES, MEMORY_BYTES)
    for number in range(200):
        assert bench.get() == [number]
        assert bench.queue.mem_bytes <= MEMORY_BYTES
    assert (bench.queue.items, bench.queue.take(False), bench.queue.fill()) == (0, None, None)


def test_items_are_loaded_before_the_memory_is_empty(bench: NumberedQueue) -> None:
    bench.put_next(200)
    for _ in range(150):
        assert bench.queue.take(False) is not None
        bench.commit()
        bench.run_all()


@journal_only
def test_items_beyond_the_memory_that_are_not_written_are_loaded_at_once(bench: NumberedQueue) -> None:
    bench.put(*[bytes(DATA_BYTES)] * 30)
    assert bench.queue.mem_items == 10
    assert sum(bench.queue.take(False) is not None for _ in range(10)) == 10
    assert (bench.queue.take(False), bench.queue.fill()) == (None, None)
    assert bench.queue.take(False) is not None


def test_queue_works_without_any_memory(tmp_path: Path, backend: Backend) -> None:
    bench = numbered_queue(tmp_path, backend.make, max_memory_size_bytes=0)
    bench.put_next(20)
    assert bench.queue.mem_items == 0
    assert bench.get_all() == list(range(20))


def test_failed_read_fails_one_fill_and_loses_nothing(bench: NumberedQueue) -> None:
    bench.put_next(100)
    bench.run_all()
    taken = list(iter(lambda: bench.queue.take(False), None))
    filling = bench.queue.fill()
    assert filling is not None
    bench.disk.fail("read", errno.EIO, times=1)
    failures: list[Failure] = []
    filling.addErrback(failures.append)
    bench.run_all()
    assert failures[0].check(QueueFailed)
    assert "Input/output error" in failures[0].getErrorMessage()
    assert bench.get(100 - len(taken)) == list(range(len(taken), 100))


@journal_only
def test_large_queue_is_freed_in_a_thread(bench: NumberedQueue) -> None:
    bench.storage.queue(b"work", QueueSettings())
    bench.put(*[b""] * (FREE_INLINE_RECORDS + 1))
    bench.commit()
    bench.queue.clear()
    assert (bench.queue.items, len(bench.threads)) == (0, 1)


@journal_only
def test_damage_in_a_file_that_is_read_costs_the_rest_of_that_file_only(bench: NumberedQueue) -> None:
    bench.put_next(100)
    bench.run_all()
    victim = sorted(bench.folder.glob("work.*"))[2]
    contents = victim.read_bytes()
    record = len(contents) // 9
    victim.write_bytes(contents[: 4 * record] + b"\xee" + contents[4 * record + 1 :])
    found = []
    while bench.queue.items:
        item = bench.queue.take(False)
        if item is not None:
            if not item.is_placeholder:
                found.append(int(item.data))
            assert bench.commit() is None
            continue
        filling = bench.queue.fill()
        failures: list[Failure] = []
        if filling is not None:
            filling.addErrback(failures.append)
            bench.run_all()
        if failures and bench.commit() is not None:
            bench.reopen()
    assert found == [*range(22), *range(27, 100)]
    assert bench.queue.stats["journal_repaired_bytes"] == 5 * record


# Rewriting and packing.


def test_files_of_an_emptied_queue_are_removed(bench: NumberedQueue) -> None:
    bench.put_next(100)
    assert bench.get(100) == list(range(100))
    bench.run_all()
    assert sum(bench.files().values()) <= bench.max_file_bytes
    assert not bench.is_journal or bench.files() == {"work": 0}
    bench.put_next(3)
    assert bench.killed().get_all() == [100, 101, 102]


def test_files_of_a_queue_that_is_never_empty_stay_small(bench: NumberedQueue) -> None:
    bench.put_next(5)
    for _ in range(300):
        bench.put_next()
        bench.get()
        bench.run_all()
        assert sum(bench.files().values()) <= bench.max_file_bytes
    assert bench.killed().get_all() == list(range(300, 305))


def test_files_shrink_while_a_backlog_is_drained(bench: NumberedQueue) -> None:
    bench.put_next(300)
    for number in range(300):
        assert bench.get() == [number]
        bench.run_all()
        assert sum(bench.files().values()) <= bench.max_file_bytes


@journal_only
def test_puts_alone_rewrite_nothing(bench: NumberedQueue) -> None:
    bench.put_next(300)
    bench.run_all()
    assert (bench.queue.stats["journal_rewrites"], bench.queue.stats["journal_packs"]) == (0, 0)
    assert bench.queue.disk_bytes == bench.queue.live_bytes


@journal_only
def test_many_open_reads_cause_few_rewrites(bench: NumberedQueue) -> None:
    bench.put_next(100)
    bench.get(100, opened=True)
    bench.run_all()
    before = bench.queue.stats["journal_rewrites"]
    for _ in range(100):
        bench.put_next()
        bench.get()
        bench.run_all()
    assert bench.queue.stats["journal_rewrites"] - before <= 3


def test_deep_backlog_is_packed_without_loss(bench: NumberedQueue) -> None:
    bench.put_next(100)
    held = [bench.take(True).xid for _ in range(3)]
    for number in range(3, 250):
        bench.put_next()
        assert bench.get() == [number]
        bench.run_all()
    bench.queue.put_back(held, False)
    bench.commit()
    assert not bench.is_journal or bench.queue.stats["journal_packs"] > 0
    assert bench.killed().get_all() == [0, 1, 2, *range(250, bench.queue.items + 247)]


def test_backlog_is_rewritten_if_a_pack_would_free_too_little(tmp_path: Path) -> None:
    bench = numbered_queue(tmp_path)
    for number in range(2000):
        bench.put(b"%d" % number)
        bench.commit()
    for number in range(1900):
        assert bench.get() == [number]
        bench.run_all()
    assert bench.queue.behind_items == 0 or bench.queue.stats["journal_rewrites"] > 0
    assert bench.queue.disk_bytes <= 2 * bench.queue.live_bytes + MAX_JOURNAL_BYTES + MEMORY_BYTES
    assert bench.killed().get_all() == list(range(1900, 2000))
    bench.close()


@journal_only
class TestRewrite:
    """The queue has few items in large files, and a thread is about to rewrite it."""

    @pytest.fixture
    def numbers(self, bench: NumberedQueue) -> list[int]:
        """Return the numbers of the items."""
        bench.put_next(5)
        while not len(bench.threads):
            bench.put_next()
            bench.get()
        return list(range(bench.next_number - 5, bench.next_number))

    def check_reopened(self, bench: NumberedQueue, numbers: list[int]) -> None:
        bench.reopen()
        assert bench.get(5) == numbers
        assert bench.queue.items == 0

    def check_no_temporary_file(self, bench: NumberedQueue) -> None:
        assert not [name for name in bench.files() if "~~" in name or name.endswith(".pack")]

    def test_queue_works_during_the_rewrite(self, bench: NumberedQueue, numbers: list[int]) -> None:
        bench.put_next(2)
        assert bench.get(3) == numbers[:3]
        bench.run_all()
        assert bench.queue.stats["journal_rewrites"] == 1
        assert bench.killed().get_all() == [*numbers[3:], bench.next_number - 2, bench.next_number - 1]

    @each_pack_step
    def test_queue_deleted_at_any_step_does_not_return(
        self, bench: NumberedQueue, numbers: list[int], step: str
    ) -> None:
        bench.disk.before(step, lambda: bench.storage.delete(bench.queue))
        bench.run_all()
        assert bench.files() == {}

    @each_pack_step
    def test_queue_recreated_at_any_step_has_new_items_only(
        self, bench: NumberedQueue, numbers: list[int], step: str
    ) -> None:
        def recreate() -> None:
            bench.storage.delete(bench.queue)
            bench.reopen()
            bench.put_next()

        bench.disk.before(step, recreate)
        bench.run_all()
        assert bench.killed().get_all() == [bench.next_number - 1]

    @each_pack_step
    def test_queue_that_fails_at_any_step_keeps_its_items(
        self, bench: NumberedQueue, numbers: list[int], step: str
    ) -> None:
        bench.disk.before(step, bench.fail_queue)
        bench.run_all()
        self.check_reopened(bench, numbers)

    def test_queue_is_not_reopened_while_its_files_are_renamed(self, bench: NumberedQueue, numbers: list[int]) -> None:
        errors: list[str] = []

        def fail_and_reopen() -> None:
            bench.fail_queue()
            with pytest.raises(QueueFailed) as refused:
                bench.reopen()
            errors.append(str(refused.value))

        bench.disk.before(crash_points.PACK_PUBLISHED, fail_and_reopen)
        bench.run_all()
        assert errors == ["the queue's files are being replaced or synced: try again in a moment"]
        self.check_reopened(bench, numbers)

    def test_stop_leaves_the_items_and_no_temporary_file(self, bench: NumberedQueue, numbers: list[int]) -> None:
        bench.close()
        self.check_no_temporary_file(bench)
        assert bench.killed().get_all() == numbers

    @pytest.mark.parametrize("operation", ["open", "cut", "write", "sync"])
    def test_failed_rewrite_keeps_the_files_and_is_retried_later(
        self, bench: NumberedQueue, numbers: list[int], operation: str
    ) -> None:
        bench.disk.fail(operation, errno.ENOSPC, times=1)
        bench.run_all()
        assert bench.queue.stats["journal_rewrites"] == 0
        self.check_no_temporary_file(bench)
        bench.put_next()
        bench.get()
        assert len(bench.threads) == 0
        bench.clock.advance(RETRY_S)
        bench.put_next()
        bench.get()
        bench.run_all()
        assert bench.queue.stats["journal_rewrites"] == 1
        assert bench.killed().get_all() == [number + 2 for number in numbers]

    def test_failed_rewrite_of_an_unused_queue_is_retried(self, bench: NumberedQueue, numbers: list[int]) -> None:
        bench.disk.fail("write", errno.ENOSPC, times=1)
        bench.run_all()
        bench.clock.advance(RETRY_S)
        bench.run_all()
        assert bench.queue.stats["journal_rewrites"] == 1
        assert bench.killed().get_all() == numbers

    def test_rewrite_without_enough_room_is_not_tried(self, bench: NumberedQueue, numbers: list[int]) -> None:
        bench.disk.room = 300
        before = len(bench.disk.calls)
        bench.run_all()
        assert bench.disk.calls[before:] == []
        bench.disk.room = None
        assert bench.killed().get_all() == numbers

    def test_new_file_whose_name_cannot_be_synced_is_dropped(self, bench: NumberedQueue, numbers: list[int]) -> None:
        bench.disk.before(crash_points.PACK_PUBLISHED, lambda: bench.disk.fail("sync_folder", errno.EIO, times=1))
        bench.run_all()
        self.check_no_temporary_file(bench)
        assert bench.killed().get_all() == numbers
        bench.put_next()
        assert bench.get(5) == numbers

    @pytest.mark.parametrize("operation", ["rename", "sync_folder"])
    def test_queue_with_partly_replaced_files_is_replayed(
        self, bench: NumberedQueue, numbers: list[int], operation: str
    ) -> None:
        bench.disk.before(crash_points.PACK_PUBLISHED_FOR_GOOD, lambda: bench.disk.fail(operation, errno.EIO, times=1))
        bench.run_all()
        bench.put(b"0" * DATA_BYTES)
        assert bench.commit() is not None
        self.check_reopened(bench, numbers)


def test_removes_are_synced_before_a_pack_omits_their_items(tmp_path: Path) -> None:
    bench = numbered_queue(tmp_path, sync_journal_ms=None)
    bench.put_next(100)
    while not bench.queue.stats["journal_packs"]:
        bench.get()
        bench.run_all()
    other = bench.without_power()
    assert int(other.take().data) == int(bench.take().data)
    other.close()
    bench.close()


def test_failed_sync_of_a_pack_leads_to_a_rewrite(tmp_path: Path) -> None:
    bench = numbered_queue(tmp_path, sync_journal_ms=500)
    bench.put_next(100)
    bench.clock.advance(1)
    bench.run_all()
    bench.disk.before(crash_points.PACK_SYNCED, lambda: bench.disk.fail("sync", errno.EIO, times=1))
    taken = 0
    while crash_points.PACK_SYNCED not in bench.disk.calls:
        bench.get()
        bench.run_all()
        taken += 1
    assert (bench.queue.failure, bench.queue.stats["journal_packs"]) == (None, 0)
    assert bench.without_power().get_all() == list(range(taken, 100))
    bench.close()


# Reopening a large queue that failed.


@journal_only
class TestReopeningALargeQueue:
    @pytest.fixture
    def failed(self, bench: NumberedQueue) -> NumberedQueue:
        """Return a failed queue that is too large to be replayed on the reactor thread."""
        bench.storage.reload_inline_bytes = 1000
        bench.put_next(20)
        bench.fail_queue()
        return bench

    def check_refused(self, call: Callable[[], object]) -> None:
        with pytest.raises(Exception, match="being loaded again"):
            call()

    def test_is_done_in_a_thread_and_refused_meanwhile(self, failed: NumberedQueue) -> None:
        for _ in range(3):
            self.check_refused(failed.reopen)
        assert len(failed.threads) == 1
        failed.run_all()
        failed.reopen()
        assert failed.get(20) == list(range(20))

    def test_prevents_a_deletion(self, failed: NumberedQueue) -> None:
        self.check_refused(failed.reopen)
        self.check_refused(lambda: failed.storage.delete(failed.queue))
        failed.run_all()
        failed.reopen()
        failed.storage.delete(failed.queue)
        failed.run_all()
        assert failed.files() == {}

    def test_is_retried_after_a_failed_read(self, failed: NumberedQueue) -> None:
        self.check_refused(failed.reopen)
        failed.disk.fail("read", errno.EIO, times=2)  # the segment log is optional, the journal is not
        failed.run_all()
        self.check_refused(failed.reopen)
        failed.run_all()
        failed.reopen()
        assert isinstance(failed.queue, JournalQueue)


# Compaction at a stop.


def closed(bench: NumberedQueue, *, compacts: bool) -> dict[str, int]:
    """Close the storage. Return the sizes of the files."""
    ended: list[None] = []
    bench.storage.close(compacts).addCallback(ended.append)
    bench.run_all()
    assert ended == [None]
    assert bench.disk.open_descriptors == set()
    return bench.files()


def check_empty_after_a_restart(bench: NumberedQueue) -> None:
    again = bench.started_over(bench.folder)
    assert (again.queue.items, again.queue.open_reads) == (0, 0)
    again.put_next()
    assert again.get_all() == [0]


def test_compacting_stop_frees_the_room_of_an_empty_queue(tmp_path: Path, backend: Backend) -> None:
    bench = numbered_queue(tmp_path, backend.make)
    bench.put_next(3)
    bench.get(3)
    assert sum(closed(bench, compacts=True).values()) < DATA_BYTES
    check_empty_after_a_restart(bench)


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_compacting_stop_empties_the_journal_of_an_empty_queue(tmp_path: Path, is_confirmed: bool) -> None:
    bench = numbered_queue(tmp_path)
    bench.put_next(3)
    bench.get(3, opened=is_confirmed)
    if is_confirmed:
        bench.queue.confirm([1, 2, 3])
    assert closed(bench, compacts=True) == {"work": 0}
    check_empty_after_a_restart(bench)


def test_other_stop_leaves_the_files_unchanged(tmp_path: Path) -> None:
    bench = numbered_queue(tmp_path)
    bench.put_next(3)
    bench.get(3)
    before = bench.files()
    assert before["work"] > 0
    assert closed(bench, compacts=False) == before


@pytest.mark.parametrize("keeps", ["an item", "an open read", "an uncommitted item"])
def test_compacting_stop_keeps_the_items(tmp_path: Path, backend: Backend, keeps: str) -> None:
    bench = numbered_queue(tmp_path, backend.make)
    bench.put_next(2)
    bench.get(2)
    bench.put(b"2")
    if keeps != "an uncommitted item":
        bench.commit()
    if keeps == "an open read":
        bench.get(opened=True)
    closed(bench, compacts=True)
    assert bench.started_over(bench.folder).get_all() == [2]


def test_compacting_stop_leaves_rotated_files_to_the_next_start(tmp_path: Path) -> None:
    bench = numbered_queue(tmp_path, max_journal_size_bytes=1_000_000)
    bench.put_next(15)
    bench.get(14)
    bench.take()  # committed by the stop
    before = bench.files()
    assert bench.rotated()
    assert closed(bench, compacts=True) == {**before, "work": before["work"] + 1}
    # Emptying only the last file would bring the items of the others back.
    assert bench.started_over(bench.folder).get_all() == []


@pytest.fixture
def two_queues(tmp_path: Path) -> NumberedQueue:
    """Return a storage with the emptied queue "work", and the queue "other" with one item."""
    bench = numbered_queue(tmp_path)
    bench.put_next(3)
    bench.get(3)
    bench.storage.put([bench.storage.queue(b"other", bench.settings)], b"one", NOW_MS, 0)
    return bench


def test_compacting_stop_logs_a_failure_and_loses_nothing(two_queues: NumberedQueue) -> None:
    before = two_queues.files()
    two_queues.disk.fail("cut", errno.EIO)
    with capturedLogs() as events:
        assert closed(two_queues, compacts=True)["work"] == before["work"]
    assert [text for event in events if "work" in (text := str(formatEvent(event))) and "Input/output" in text]
    again = two_queues.started_over(two_queues.folder)
    assert (again.queue.items, again.storage.queue(b"other", again.settings).items) == (0, 1)
    again.close()


def test_compacting_stop_continues_after_a_failure(two_queues: NumberedQueue) -> None:
    two_queues.storage.queue(b"other", two_queues.settings).take(False)
    two_queues.disk.fail("cut", errno.EIO, times=1)
    sizes = closed(two_queues, compacts=True)
    assert sorted(size > 0 for size in sizes.values()) == [False, True]
