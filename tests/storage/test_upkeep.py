"""Files are kept small beside the operations of their queues, and nobody notices but the disk.

What is said of a queue holds for every durable backend; what is said of files, for the journal's.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.storage.journal.maintenance import FREE_INLINE_RECORDS, RETRY_S
from kestrel.storage.journal.queue import JournalQueue
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.threads import SteppedThreads
from tests.storage.backends import Backend, MakeStorage, journal_only

ADD_MS = 1_700_000_000_000
MEMORY = 1000
LARGEST = 5000
CHECKSUM_BYTES = 9
"""The CHECKSUM record of a scroll's reader file."""
DEFAULT = 2000
SIZE = 100
"""Of an item's data, in bytes; its record has 21 more."""

SMALL = {
    "max_memory_size_bytes": MEMORY,
    "max_journal_size_bytes": LARGEST,
    "default_journal_size_bytes": DEFAULT,
    "min_journal_compact_delay_ms": None,
}


class Bench:
    """A storage and its queue "work", whose threads run when they are told to."""

    def __init__(self, folder: Path, make_storage: MakeStorage = JournalStorage, **options: object) -> None:
        self.folder = folder
        self.make_storage = make_storage
        self.settings = QueueSettings(**{**SMALL, **options})
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.disk = FaultyDisk()
        self.storage = make_storage(
            str(folder).encode(), self.clock, self.threads, reserve_bytes=1, now_ms=lambda: ADD_MS, disk=self.disk
        )
        self.storage.start(lambda name: self.settings)
        self.threads.run_all()
        self.queue = self.storage.queue(b"work", self.settings)
        self._count = 0
        self._commits = 0

    def settle(self) -> None:
        self.threads.run_all()

    def commit(self) -> Failure | None:
        """Commit, and wait for it; nothing else is waited for. None or why it failed."""
        self._commits += 1
        pairs = self.storage.commit([self.queue])
        outcomes: list[object] = []
        for _, safe in pairs:
            safe.addBoth(outcomes.append)
        while len(outcomes) < len(pairs):
            self.threads.run_one()
        return outcomes[0] if outcomes and isinstance(outcomes[0], Failure) else None

    def put(self, count: int = 1) -> None:
        """Put items of data that is a number, and commit each."""
        for _ in range(count):
            self.storage.put([self.queue], b"%0*d" % (SIZE, self._count), ADD_MS, 0)
            self._count += 1
            assert self.commit() is None

    def get(self, count: int = 1, opened: bool = False) -> list[int]:
        """Take items, and commit each; returns their numbers."""
        items = []
        for _ in range(count):
            items.append(self.take(opened))
            assert self.commit() is None
        return [int(item.data) for item in items]

    def take(self, opened: bool = False) -> Item:
        item = self.queue.take(opened)
        while item is None:
            filling = self.queue.fill()
            fired: list[object] = []
            if filling is not None:
                filling.addBoth(fired.append)
                while not fired:
                    self.threads.run_one()
            item = self.queue.take(opened)
        return item

    def files(self) -> dict[str, int]:
        """The queue's files and their sizes."""
        return {path.name: path.stat().st_size for path in self.folder.iterdir() if path.is_file()}

    @property
    def most_bytes(self) -> int:
        """Return how many bytes the files of these items may take. A commit of a scroll may add a checksum."""
        seals = 0 if self.make_storage is JournalStorage else CHECKSUM_BYTES * self._commits
        return 2 * self.queue.items * (SIZE + 21) + LARGEST + MEMORY + seals

    def rotated(self) -> list[str]:
        return sorted(name for name in self.files() if name.startswith("work."))

    def stat(self, name: str) -> int:
        return self.queue.stats[name]

    def close(self) -> None:
        self.disk.mend()
        self.storage.close()
        self.settle()
        assert self.disk.open_descriptors == set()


def after_a_kill(bench: Bench) -> list[int]:
    """What a start finds in a copy of the folder as it is now."""
    copy = bench.folder.with_name(bench.folder.name + "-copy")
    shutil.copytree(bench.folder, copy)
    other = Bench(copy, bench.make_storage)
    numbers = other.get(other.queue.items)
    other.close()
    shutil.rmtree(copy)
    return numbers


@pytest.fixture
def bench(tmp_path: Path, backend: Backend) -> Iterator[Bench]:
    bench = Bench(tmp_path / "queues", backend.make)
    yield bench
    bench.close()


# Rotation and memory.


@journal_only
def test_a_file_that_outgrew_the_memory_is_rotated_and_the_queue_has_a_current_one(bench: Bench) -> None:
    bench.put(8)
    assert bench.rotated() == []
    bench.put()
    assert (len(bench.rotated()), bench.files()["work"]) == (1, 0)
    assert bench.stat("journal_rotations") == 1


def test_a_backlog_is_in_memory_up_to_the_limit_alone(bench: Bench) -> None:
    bench.put(200)
    assert (bench.queue.items, bench.queue.bytes) == (200, 200 * SIZE)
    assert bench.queue.mem_bytes == MEMORY
    assert bench.queue.mem_items == MEMORY // SIZE


def test_a_backlog_comes_in_order_and_within_the_memory(bench: Bench) -> None:
    bench.put(200)
    for number in range(200):
        assert bench.get() == [number]
        assert bench.queue.mem_bytes <= MEMORY
    assert (bench.queue.items, bench.queue.take(False), bench.queue.fill()) == (0, None, None)


def test_the_window_is_filled_before_it_is_empty(bench: Bench) -> None:
    bench.put(200)
    for _ in range(150):
        assert bench.queue.take(False) is not None
        bench.commit()
        bench.settle()


@journal_only
def test_what_is_on_disk_alone_and_not_even_written_is_there_at_once(bench: Bench) -> None:
    for _ in range(30):
        bench.storage.put([bench.queue], bytes(SIZE), ADD_MS, 0)
    assert bench.queue.mem_items == 10
    assert sum(bench.queue.take(False) is not None for _ in range(10)) == 10
    assert (bench.queue.take(False), bench.queue.fill()) == (None, None)
    assert bench.queue.take(False) is not None


def test_a_memory_of_nothing_still_lets_items_through(tmp_path: Path, backend: Backend) -> None:
    bench = Bench(tmp_path / "queues", backend.make, max_memory_size_bytes=0)
    bench.put(20)
    assert bench.queue.mem_items == 0
    assert bench.get(20) == list(range(20))
    bench.close()


def test_a_backlog_that_was_cleared_while_it_was_read_does_not_come_back(bench: Bench) -> None:
    bench.put(100)
    while bench.queue.take(False) is not None:
        pass
    filling = bench.queue.fill()
    assert filling is not None
    bench.queue.clear()
    bench.put(30)
    bench.settle()
    assert filling.called
    assert bench.get(30) == list(range(100, 130))
    assert bench.queue.items == 0


def test_an_unreadable_head_is_an_error_once_and_nothing_is_lost(bench: Bench) -> None:
    bench.put(100)
    bench.settle()
    taken = list(iter(lambda: bench.queue.take(False), None))
    filling = bench.queue.fill()
    assert filling is not None
    bench.disk.fail("read", errno.EIO, times=1)
    failures: list[Failure] = []
    filling.addErrback(failures.append)
    bench.settle()
    assert failures[0].check(QueueFailed)
    assert "Input/output error" in failures[0].getErrorMessage()
    assert bench.get(100 - len(taken)) == list(range(len(taken), 100))


@journal_only
def test_a_large_queue_is_freed_in_a_thread(bench: Bench) -> None:
    bench.storage.queue(b"work", QueueSettings())
    for _ in range(FREE_INLINE_RECORDS + 1):
        bench.storage.put([bench.queue], b"", ADD_MS, 0)
    bench.commit()
    bench.queue.clear()
    assert (bench.queue.items, len(bench.threads)) == (0, 1)


@journal_only
def test_a_file_that_is_damaged_while_it_is_read_behind_is_repaired_and_costs_its_rest_alone(bench: Bench) -> None:
    bench.put(100)
    bench.settle()
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
            bench.settle()
        if failures and bench.commit() is not None:  # where it is told that the queue has to be opened anew
            bench.queue = bench.storage.queue(b"work", bench.settings)
    assert found == [*range(22), *range(27, 100)]
    assert bench.stat("journal_repaired_bytes") == 5 * record


# Rewriting and packing.


@journal_only
def test_the_files_of_an_emptied_queue_go(bench: Bench) -> None:
    bench.put(100)
    assert bench.get(100) == list(range(100))
    bench.settle()
    assert bench.files() == {"work": 0}
    bench.put(3)
    assert after_a_kill(bench) == [100, 101, 102]


def test_the_room_of_an_emptied_queue_is_given_back(bench: Bench) -> None:
    bench.put(100)
    bench.get(100)
    bench.settle()
    assert sum(bench.files().values()) <= bench.most_bytes
    bench.put(3)
    assert after_a_kill(bench) == [100, 101, 102]


def test_a_queue_that_is_never_emptied_takes_no_more_than_its_share_of_the_disk(bench: Bench) -> None:
    bench.put(5)
    for _ in range(300):
        bench.put()
        bench.get()
        bench.settle()
        assert sum(bench.files().values()) <= bench.most_bytes
    assert after_a_kill(bench) == list(range(300, 305))


def test_a_backlog_takes_no_more_than_its_share_of_the_disk_while_it_is_drained(bench: Bench) -> None:
    bench.put(300)
    for number in range(300):
        assert bench.get() == [number]
        bench.settle()
        assert sum(bench.files().values()) <= bench.most_bytes


@journal_only
def test_nothing_is_rewritten_while_nothing_is_removed(bench: Bench) -> None:
    bench.put(300)
    bench.settle()
    assert (bench.stat("journal_rewrites"), bench.stat("journal_packs")) == (0, 0)
    assert bench.queue.disk_bytes == bench.queue.live_bytes


@journal_only
def test_many_open_reads_cause_no_rewrite_for_each_operation(bench: Bench) -> None:
    bench.put(100)
    bench.get(100, opened=True)
    bench.settle()
    before = bench.stat("journal_rewrites")
    for _ in range(100):
        bench.put()
        bench.get()
        bench.settle()
    assert bench.stat("journal_rewrites") - before <= 3


def keep_deep(bench: Bench) -> None:
    """Hold the first three of a hundred items, and go through many more."""
    bench.put(100)
    held = [bench.take(True).xid for _ in range(3)]
    for number in range(3, 250):
        bench.put()
        assert bench.get() == [number]
        bench.settle()
    bench.queue.put_back(held, False)
    bench.commit()


@journal_only
def test_a_backlog_that_is_kept_deep_is_packed_and_loses_nothing(bench: Bench) -> None:
    keep_deep(bench)
    assert bench.stat("journal_packs") > 0
    assert after_a_kill(bench) == [0, 1, 2, *range(250, bench.queue.items + 247)]


def test_a_backlog_that_is_kept_deep_loses_nothing(bench: Bench) -> None:
    keep_deep(bench)
    assert after_a_kill(bench) == [0, 1, 2, *range(250, bench.queue.items + 247)]


def test_a_backlog_of_which_a_pack_would_free_too_little_is_rewritten_with_what_is_on_disk_alone(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "queues")
    bench.queue = bench.storage.queue(b"work", bench.settings)
    for number in range(2000):
        bench.storage.put([bench.queue], b"%d" % number, ADD_MS, 0)
        bench.commit()
    for number in range(1900):
        assert int(bench.take().data) == number
        bench.commit()
        bench.settle()
    assert bench.queue.behind_items == 0 or bench.stat("journal_rewrites") > 0
    assert bench.queue.disk_bytes <= 2 * bench.queue.live_bytes + LARGEST + MEMORY
    assert after_a_kill(bench) == list(range(1900, 2000))
    bench.close()


AFTER = [
    crash_points.PACK_WRITTEN,
    crash_points.PACK_SYNCED,
    crash_points.PACK_PUBLISHED,
    crash_points.PACK_REPLACED,
    crash_points.PACK_FINISHED,
]


@journal_only
class TestWhileAFileIsWrittenAnew:
    """The queue has been drained to its last items, and a thread is about to begin."""

    @pytest.fixture
    def numbers(self, bench: Bench) -> list[int]:
        bench.put(5)
        while not len(bench.threads):
            bench.put()
            bench.get()
        return list(range(bench._count - 5, bench._count))

    def test_the_queue_goes_on(self, bench: Bench, numbers: list[int]) -> None:
        bench.put(2)
        assert bench.get(3) == numbers[:3]
        bench.settle()
        assert bench.stat("journal_rewrites") == 1
        assert after_a_kill(bench) == [*numbers[3:], bench._count - 2, bench._count - 1]

    @pytest.mark.parametrize("step", AFTER)
    def test_a_queue_that_is_deleted_at_any_step_does_not_come_back(
        self, bench: Bench, numbers: list[int], step: str
    ) -> None:
        bench.disk.before(step, lambda: bench.storage.delete(bench.queue))
        bench.settle()
        assert bench.files() == {}

    @pytest.mark.parametrize("step", AFTER)
    def test_a_queue_that_is_deleted_and_made_again_at_any_step_is_the_new_one(
        self, bench: Bench, numbers: list[int], step: str
    ) -> None:
        def replace() -> None:
            bench.storage.delete(bench.queue)
            bench.queue = bench.storage.queue(b"work", bench.settings)
            bench.put()

        bench.disk.before(step, replace)
        bench.settle()
        assert after_a_kill(bench) == [bench._count - 1]

    @pytest.mark.parametrize("step", AFTER)
    def test_a_queue_that_dies_at_any_step_is_there_again(self, bench: Bench, numbers: list[int], step: str) -> None:
        def die() -> None:
            bench.disk.fail("write", errno.EIO, times=1)
            bench.storage.put([bench.queue], b"0" * SIZE, ADD_MS, 0)
            assert bench.commit() is not None

        bench.disk.before(step, die)
        bench.settle()
        bench.queue = bench.storage.queue(b"work", bench.settings)
        assert bench.get(5) == numbers
        assert bench.queue.items == 0

    def test_a_queue_is_not_opened_while_its_files_are_renamed(self, bench: Bench, numbers: list[int]) -> None:
        refusals: list[str] = []

        def die() -> None:
            bench.disk.fail("write", errno.EIO, times=1)
            bench.storage.put([bench.queue], b"0" * SIZE, ADD_MS, 0)
            bench.commit()
            with pytest.raises(QueueFailed) as refused:
                bench.storage.queue(b"work", bench.settings)
            refusals.append(str(refused.value))

        bench.disk.before(crash_points.PACK_PUBLISHED, die)
        bench.settle()
        assert refusals == ["the queue's files are being replaced: try again in a moment"]
        bench.queue = bench.storage.queue(b"work", bench.settings)
        assert bench.get(5) == numbers

    def test_a_stop_leaves_no_temporary_file_and_the_queue_whole(self, bench: Bench, numbers: list[int]) -> None:
        bench.storage.close()
        bench.settle()
        assert not [name for name in bench.files() if "~~" in name]
        assert after_a_kill(bench) == numbers

    @pytest.mark.parametrize("operation", ["open", "cut", "write", "sync"])
    def test_a_failure_leaves_the_old_files_and_is_tried_again_after_a_while(
        self, bench: Bench, numbers: list[int], operation: str
    ) -> None:
        bench.disk.fail(operation, errno.ENOSPC, times=1)
        bench.settle()
        assert bench.stat("journal_rewrites") == 0
        assert not [name for name in bench.files() if "~~" in name]
        bench.put()
        bench.get()
        assert len(bench.threads) == 0
        bench.clock.advance(RETRY_S)
        bench.put()
        bench.get()
        bench.settle()
        assert bench.stat("journal_rewrites") == 1
        assert after_a_kill(bench) == list(range(bench._count - 5, bench._count))

    def test_a_failure_is_tried_again_though_nobody_uses_the_queue(self, bench: Bench, numbers: list[int]) -> None:
        bench.disk.fail("write", errno.ENOSPC, times=1)
        bench.settle()
        bench.clock.advance(RETRY_S)
        bench.settle()
        assert bench.stat("journal_rewrites") == 1
        assert after_a_kill(bench) == numbers

    def test_it_is_not_even_tried_where_it_would_take_the_last_room(self, bench: Bench, numbers: list[int]) -> None:
        bench.disk.room = 300
        before = len(bench.disk.calls)
        bench.settle()
        assert bench.disk.calls[before:] == []
        bench.disk.room = None
        assert after_a_kill(bench) == numbers

    def test_a_new_file_that_cannot_be_published_for_good_is_not_published(
        self, bench: Bench, numbers: list[int]
    ) -> None:
        bench.disk.before(crash_points.PACK_PUBLISHED, lambda: bench.disk.fail("sync_folder", errno.EIO, times=1))
        bench.settle()
        assert not [name for name in bench.files() if "~~" in name or name.endswith(".pack")]
        assert after_a_kill(bench) == numbers
        bench.put()
        assert bench.get(5) == numbers

    @pytest.mark.parametrize("operation", ["rename", "sync_folder"])
    def test_files_that_were_left_half_replaced_end_in_a_replay(
        self, bench: Bench, numbers: list[int], operation: str
    ) -> None:
        bench.disk.before(crash_points.PACK_PUBLISHED_FOR_GOOD, lambda: bench.disk.fail(operation, errno.EIO, times=1))
        bench.settle()
        bench.storage.put([bench.queue], b"0" * SIZE, ADD_MS, 0)
        assert bench.commit() is not None
        bench.queue = bench.storage.queue(b"work", bench.settings)
        assert bench.get(5) == numbers
        assert bench.queue.items == 0


def test_nothing_that_stands_empty_in_a_pack_is_on_the_medium_before_its_removal_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "queues", sync_journal_ms=None)
    bench.put(100)
    while not bench.stat("journal_packs"):
        bench.get()
        bench.settle()
    left = tmp_path / "left"
    bench.disk.medium.copy(str(bench.folder).encode(), str(left).encode())
    first = bench.take()
    other = Bench(left)
    assert int(other.take().data) == int(first.data)
    other.close()
    bench.close()


def test_a_pack_whose_sync_fails_is_given_up_and_the_contents_are_written_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "queues", sync_journal_ms=500)
    bench.put(100)
    bench.clock.advance(1)
    bench.settle()
    bench.disk.before(crash_points.PACK_SYNCED, lambda: bench.disk.fail("sync", errno.EIO, times=1))
    taken = 0
    while crash_points.PACK_SYNCED not in bench.disk.calls:
        bench.get()
        bench.settle()
        taken += 1
    assert (bench.queue.failure, bench.stat("journal_packs")) == (None, 0)
    left = tmp_path / "left"
    bench.disk.medium.copy(str(bench.folder).encode(), str(left).encode())
    other = Bench(left)
    assert other.get(other.queue.items) == list(range(taken, 100))
    other.close()
    bench.close()


# A queue that failed.


@journal_only
class TestALargeQueueThatFailed:
    @pytest.fixture
    def failed(self, bench: Bench) -> Bench:
        bench.storage.reload_inline_bytes = 1000
        bench.put(20)
        bench.disk.fail("write", errno.EIO, times=1)
        bench.storage.put([bench.queue], b"", ADD_MS, 0)
        assert bench.commit() is not None
        return bench

    def refused(self, call: Callable[[], object]) -> None:
        with pytest.raises(Exception, match="being loaded again"):
            call()

    def test_is_replayed_in_a_thread_and_its_uses_are_refused_meanwhile(self, failed: Bench) -> None:
        for _ in range(3):
            self.refused(lambda: failed.storage.queue(b"work", failed.settings))
        assert len(failed.threads) == 1
        failed.settle()
        failed.queue = failed.storage.queue(b"work", failed.settings)
        assert failed.get(20) == list(range(20))

    def test_is_not_deleted_meanwhile(self, failed: Bench) -> None:
        self.refused(lambda: failed.storage.queue(b"work", failed.settings))
        self.refused(lambda: failed.storage.delete(failed.queue))
        failed.settle()
        failed.storage.delete(failed.storage.queue(b"work", failed.settings))
        failed.settle()
        assert failed.files() == {}

    def test_is_tried_again_by_a_later_use_when_it_cannot_be_read(self, failed: Bench) -> None:
        self.refused(lambda: failed.storage.queue(b"work", failed.settings))
        failed.disk.fail("read", errno.EIO, times=2)  # the segment log can be missed, the journal cannot
        failed.settle()
        self.refused(lambda: failed.storage.queue(b"work", failed.settings))
        failed.settle()
        assert isinstance(failed.storage.queue(b"work", failed.settings), JournalQueue)


# A stop that is to leave little on the disk.


def closed(bench: Bench, *, compacts: bool) -> dict[str, int]:
    """The files that a stop leaves, and their sizes."""
    ended: list[None] = []
    bench.storage.close(compacts).addCallback(ended.append)
    bench.settle()
    assert ended == [None]
    assert bench.disk.open_descriptors == set()
    return bench.files()


def test_a_stop_that_compacts_leaves_a_queue_empty_that_is(tmp_path: Path, backend: Backend) -> None:
    bench = Bench(tmp_path / "queues", backend.make)
    bench.put(3)
    bench.get(3)
    assert sum(closed(bench, compacts=True).values()) < SIZE
    again = Bench(tmp_path / "queues", backend.make)
    assert (again.queue.items, again.queue.open_reads) == (0, 0)
    again.put()
    assert again.get() == [0]
    again.close()


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_stop_that_compacts_empties_the_file_of_a_queue_with_nothing_in_it(
    tmp_path: Path, is_confirmed: bool
) -> None:
    bench = Bench(tmp_path / "queues")
    bench.put(3)
    bench.get(3, opened=is_confirmed)
    if is_confirmed:
        bench.queue.confirm([1, 2, 3])
    assert closed(bench, compacts=True) == {"work": 0}
    again = Bench(tmp_path / "queues")
    assert (again.queue.items, again.queue.open_reads) == (0, 0)
    again.put()
    assert again.get() == [0]
    again.close()


def test_a_stop_that_does_not_compact_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "queues")
    bench.put(3)
    bench.get(3)
    before = bench.files()
    assert before["work"] > 0
    assert closed(bench, compacts=False) == before


def hold_items(bench: Bench) -> None:
    bench.put(3)
    bench.get(2)


def hold_an_open_read(bench: Bench) -> None:
    bench.put(3)
    bench.get(2)
    bench.get(1, opened=True)


def hold_an_item_of_the_last_tick(bench: Bench) -> None:
    bench.put(2)
    bench.get(2)
    bench.storage.put([bench.queue], b"2", ADD_MS, 0)


@pytest.mark.parametrize("hold", [hold_items, hold_an_open_read, hold_an_item_of_the_last_tick])
def test_a_stop_that_compacts_leaves_a_queue_alone_that_holds_something(
    tmp_path: Path, backend: Backend, hold: Callable[[Bench], None]
) -> None:
    bench = Bench(tmp_path / "queues", backend.make)
    hold(bench)
    closed(bench, compacts=True)
    again = Bench(tmp_path / "queues", backend.make)
    assert again.get(again.queue.items) == [2]
    again.close()


def test_a_stop_that_compacts_leaves_a_queue_with_rotated_files_to_the_next_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "queues", max_journal_size_bytes=1_000_000)
    bench.put(15)
    bench.get(14)
    bench.take()  # the stop commits it
    before = bench.files()
    assert bench.rotated()
    assert closed(bench, compacts=True) == {**before, "work": before["work"] + 1}
    again = Bench(tmp_path / "queues")
    assert again.queue.items == 0, "to empty the last file alone would bring those of the others back"
    again.close()


def test_a_stop_that_compacts_where_the_disk_fails_says_so_and_stops_and_nothing_is_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "queues")
    bench.put(3)
    bench.get(3)
    other = bench.storage.queue(b"other", bench.settings)
    bench.storage.put([other], b"one", ADD_MS, 0)
    before = bench.files()
    bench.disk.fail("cut", errno.EIO)
    with capturedLogs() as events:
        assert closed(bench, compacts=True)["work"] == before["work"]
    assert [text for event in events if "work" in (text := str(formatEvent(event))) and "Input/output" in text]
    again = Bench(tmp_path / "queues")
    assert again.queue.items == 0
    assert again.storage.queue(b"other", again.settings).items == 1
    again.close()


def test_a_stop_that_compacts_empties_the_files_of_queues_after_one_that_fails(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "queues")
    bench.put(3)
    bench.get(3)
    other = bench.storage.queue(b"other", bench.settings)
    bench.storage.put([other], b"one", ADD_MS, 0)
    other.take(False)
    bench.disk.fail("cut", errno.EIO, times=1)
    sizes = closed(bench, compacts=True)
    assert sorted(size > 0 for size in sizes.values()) == [False, True]
