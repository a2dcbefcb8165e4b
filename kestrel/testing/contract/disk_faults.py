"""Failed commits, a failing disk, and a process that dies at any moment."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from kestrel.errors import QueueFailed, StorageError
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import LONG_S, Backend, StorageUnderTest, started_storage
from kestrel.testing.contract.model_check import ModelCheckedStorage
from kestrel.testing.contract.queue_operations import assert_dead
from kestrel.testing.contract.requirements import requires
from kestrel.testing.faults import ProcessDied

FAILING: Final = ("list", "open", "open_read", "read", "write", "sync", "sync_folder", "cut", "rename", "erase")

Batch: TypeAlias = Callable[[StorageUnderTest, IQueueStorage, int], object]
"""A function that records changes on a queue. Its last argument is the xid of an open read of that queue."""


def open_and_put(subject: StorageUnderTest, queue: IQueueStorage, xid: int) -> None:
    """Open the head, which need not be recorded, and put a new item."""
    queue.take(True)
    subject.put(queue, b"new")


def put_back_and_put(subject: StorageUnderTest, queue: IQueueStorage, xid: int) -> None:
    """Put back the open read, which need not be recorded, and put a new item."""
    queue.put_back([xid], True)
    subject.put(queue, b"new")


BATCHES: Final[dict[str, Batch]] = {
    "put": lambda subject, queue, xid: subject.put(queue, b"new"),
    "take": lambda subject, queue, xid: queue.take(False),
    "open and put": open_and_put,
    "confirm": lambda subject, queue, xid: queue.confirm([xid]),
    "put back and put": put_back_and_put,
    "clear": lambda subject, queue, xid: queue.clear(),
}


def begin(synced: StorageUnderTest) -> tuple[IQueueStorage, int]:
    """Return a queue with b"b" and b"c" after an open read of b"a", all durable, and the xid of the open read."""
    queue = synced.queue_with(b"a", b"b", b"c")
    xid = synced.open(queue).xid
    synced.commit(queue)
    if synced.disk is not None:
        synced.check_that_its_disk_is_used()
    return queue, xid


def check_remaining_items(subject: StorageUnderTest, expected: list[bytes]) -> None:
    """Check the items of the queue now, after a kill, after a power failure if possible, and after a restart."""
    assert subject.data_in(subject.reopened()) == expected
    subject.commit(subject.queue())
    assert subject.killed().data_in() == expected
    if subject.disk is not None:
        assert subject.without_power().data_in() == expected
    assert subject.restarted().data_in() == expected


def commit_fails(subject: StorageUnderTest, queue: IQueueStorage) -> bool:
    """Commit the queue, and return True if the commit fails."""
    try:
        outcomes = subject.begin_commit(queue)
    except QueueFailed:
        return True
    for outcome in outcomes:
        subject.until_fired(outcome)
    return any(outcome.has_failed for outcome in outcomes)


def lose_item(subject: StorageUnderTest, queue: IQueueStorage, commit_fault: str) -> None:
    """Put an item to the queue b"work" and fail its commit."""
    subject.put(queue, b"lost")
    subject.fail_commit(commit_fault)
    with pytest.raises(StorageError):
        subject.commit(queue)
    subject.mend()


class SyncedBackend(Backend):
    """The base class of tests with syncJournal = 0."""

    synced = started_storage("synced", sync_journal_ms=0)
    """A storage that syncs before it acknowledges."""


@requires("durable", "commit_faults")
class CommitFailureTests(SyncedBackend):
    """Failed commits of one queue, whatever the reason: the queue object fails, and durable items remain."""

    @pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
    def test_failed_commit_is_lost_whole(self, synced: StorageUnderTest, commit_fault: str, batch: Batch) -> None:
        queue, xid = begin(synced)
        batch(synced, queue, xid)
        synced.fail_commit(commit_fault)
        with pytest.raises(StorageError):
            synced.commit(queue)
        synced.mend()
        assert_dead(synced, queue, xid)
        assert synced.reopened() is not queue
        check_remaining_items(synced, [b"a", b"b", b"c"])

    @pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
    def test_changes_recorded_during_a_failed_commit_fail(
        self, synced: StorageUnderTest, commit_fault: str, batch: Batch
    ) -> None:
        queue, xid = begin(synced)
        synced.put(queue, b"first batch")
        synced.fail_commit(commit_fault)
        first = synced.begin_commit(queue)
        assert first, "commit acknowledged a batch that was not durable yet"
        if queue.failure is None:
            batch(synced, queue, xid)
        synced.run_threads()
        synced.mend()
        assert [outcome.has_failed for outcome in first] == [True]
        assert_dead(synced, queue, xid)
        assert commit_fails(synced, queue), "a batch was acknowledged that depends on a lost batch"
        check_remaining_items(synced, [b"a", b"b", b"c"])

    def test_reopened_queue_works_after_failed_commits(self, synced: StorageUnderTest, commit_fault: str) -> None:
        queue, _ = begin(synced)
        for turn in range(3):
            lose_item(synced, queue, commit_fault)
            queue = synced.reopened()
            synced.store(queue, b"%d" % turn)
        check_remaining_items(synced, [b"a", b"b", b"c", b"0", b"1", b"2"])

    def test_queue_whose_first_commit_failed_is_new(self, synced: StorageUnderTest, commit_fault: str) -> None:
        lose_item(synced, synced.queue(), commit_fault)
        queue = synced.reopened()
        assert (queue.items, queue.open_reads) == (0, 0)
        synced.store(queue, b"new")
        check_remaining_items(synced, [b"new"])

    def test_deletion_of_a_failed_object_deletes_the_reopened_queue(
        self, synced: StorageUnderTest, commit_fault: str
    ) -> None:
        queue, xid = begin(synced)
        lose_item(synced, queue, commit_fault)
        live = synced.reopened()
        synced.storage.delete(queue)
        synced.commit(queue)
        assert_dead(synced, live, xid)
        new = synced.queue()
        assert (new.items, new.open_reads) == (0, 0)
        synced.put(new, b"new")
        synced.commit(live, new)
        check_remaining_items(synced, [b"new"])


@requires("durable", "disk")
class DiskCommitFailureTests(SyncedBackend):
    """Commits that fail because of the disk."""

    def test_failed_commit_of_many_queues_is_lost_where_reported(self, synced: StorageUnderTest) -> None:
        names = [b"a", b"a+x", b"a+y", b"other"]
        queues = [synced.queue(name) for name in names]
        synced.store_in_all(queues, b"safe")
        synced.storage.put(queues, b"new", 2, 0)
        synced.faulty_disk.fail("sync", errno.EIO, times=1)
        failed = synced.failed_queues(queues)
        assert failed
        expected = [[b"safe"] if queue in failed else [b"safe", b"new"] for queue in queues]
        assert [synced.data_in(synced.reopened(name)) for name in names] == expected
        again = synced.restarted()
        assert [again.data_in(again.queue(name)) for name in names] == expected

    @pytest.mark.parametrize("operation", ["sync", "write"])
    def test_commit_of_a_queue_that_failed_before_it_fails(self, synced: StorageUnderTest, operation: str) -> None:
        parent, child = queues = [synced.queue(b"a"), synced.queue(b"a+x")]
        synced.store_in_all(queues, b"safe")
        synced.put(child, b"new")
        synced.put(parent, b"lost")
        synced.faulty_disk.fail(operation, errno.EIO, times=1)
        with pytest.raises(StorageError):
            synced.commit(parent)
        has_died = child.failure is not None
        assert synced.failed_queues([child]) == [child] * has_died
        expected = [[b"safe"], [b"safe"] if has_died else [b"safe", b"new"]]
        assert [synced.data_in(synced.reopened(name)) for name in (b"a", b"a+x")] == expected
        again = synced.killed()
        assert [again.data_in(again.queue(name)) for name in (b"a", b"a+x")] == expected

    @pytest.mark.parametrize("operation", FAILING)
    def test_failed_deletion_leaves_the_queue_and_its_files(self, synced: StorageUnderTest, operation: str) -> None:
        queue, xid = begin(synced)
        synced.faulty_disk.fail(operation, errno.EIO)
        try:
            synced.storage.delete(queue)
        except StorageError:
            synced.faulty_disk.mend()
            assert (queue.failure, queue.items, queue.open_reads) == (None, 2, 1)
            queue.confirm([xid])
            synced.store(queue, b"d")
            check_remaining_items(synced, [b"b", b"c", b"d"])
        else:
            synced.faulty_disk.mend()
            synced.commit(queue)
            check_remaining_items(synced, [])

    def test_failed_reopen_is_tried_again(self, synced: StorageUnderTest) -> None:
        queue, _ = begin(synced)
        synced.put(queue, b"lost")
        synced.faulty_disk.fail("sync", errno.EIO, times=1)
        with pytest.raises(StorageError):
            synced.commit(queue)
        for operation in ("read", "open_read", "list"):
            synced.faulty_disk.fail(operation, errno.EIO)
        with suppress(QueueFailed):
            synced.reopened()
        synced.faulty_disk.mend()
        check_remaining_items(synced, [b"a", b"b", b"c"])


# A scenario: steps of a few queues, to be repeated with faults and crashes.

LIMITS: Final[dict[str, Any]] = {
    "max_memory_size_bytes": 60,
    "default_journal_size_bytes": 200,
    "max_journal_size_bytes": 600,
    "min_journal_compact_delay_ms": None,
    "sync_journal_ms": 0,
}

Step: TypeAlias = Callable[[ModelCheckedStorage], None]

PARENT, CHILD, SIBLING, OTHER = b"a", b"a+b", b"a+c", b"other"


def put_to_all(tracked: ModelCheckedStorage) -> None:
    """Put items to the whole fanout."""
    for size in (0, 15, 40):
        tracked.put([PARENT, CHILD, SIBLING], b"." * size, expires=size == 15)


def put_to_one(tracked: ModelCheckedStorage) -> None:
    """Put items to one child, and to a queue outside the fanout."""
    tracked.put([CHILD], b"for one")
    for size in (30, 50):
        tracked.put([OTHER], b"," * size)


def open_some(tracked: ModelCheckedStorage) -> None:
    """Open some heads, and take one without opening it."""
    for name in (CHILD, CHILD, OTHER):
        tracked.take(name, opened=True)
    tracked.take(PARENT)


def end_some(tracked: ModelCheckedStorage) -> None:
    """Put back one open read as failed, and confirm one."""
    opened = list(tracked.models[CHILD].opened)
    tracked.put_back(CHILD, opened[:1], failed=True)
    tracked.confirm(CHILD, opened[-1:])


def take_some(tracked: ModelCheckedStorage) -> None:
    """Take items of all queues without opening them."""
    for name in (PARENT, PARENT, CHILD, SIBLING, OTHER):
        tracked.take(name)


def clear_one(tracked: ModelCheckedStorage) -> None:
    """Clear a queue, and put an item to it."""
    tracked.clear(SIBLING)
    tracked.put([SIBLING], b"after the clear")


def delete_one(tracked: ModelCheckedStorage) -> None:
    """Delete a queue, and make it again with one item."""
    tracked.delete(OTHER)
    tracked.put([OTHER], b"after the deletion")


def have_upkeep(tracked: ModelCheckedStorage) -> None:
    """Make the backend compact its files."""
    tracked.compact(PARENT)


STEPS: Final[Sequence[Step]] = (
    put_to_all,
    put_to_one,
    open_some,
    put_to_all,
    end_some,
    take_some,
    have_upkeep,
    clear_one,
    put_to_all,
    put_to_one,
    open_some,
    take_some,
    have_upkeep,
)

STEPS_WITH_A_DELETION: Final[Sequence[Step]] = (*STEPS[:9], delete_one, *STEPS[9:])


def run_steps(tracked: ModelCheckedStorage, steps: Sequence[Step]) -> None:
    """Run the steps, with a commit after each. After a failure, recover and continue with the next step."""
    for step in steps:
        try:
            step(tracked)
            tracked.commit()
        except (StorageError, OSError):
            tracked.recover()
            if tracked.subject.storage.refusal is not None:
                tracked.subject.clock.advance(LONG_S)


def check_recovery(tracked: ModelCheckedStorage) -> None:
    """Remove the faults, and check the storage now, after a kill and after a restart."""
    tracked.subject.mend()
    tracked.recover()
    tracked.check()
    try:
        tracked.commit()
    # A fault that happens between two commits is reported by the next commit.
    except StorageError:
        tracked.recover()
        tracked.commit()
    tracked.killed().check()
    tracked.restarted().check()
    tracked.subject.end()


def start_storage(backend: Backend, folder: Path) -> ModelCheckedStorage:
    """Start a storage with the limits of the scenario, and forget the calls of its disk and database until now."""
    tracked = ModelCheckedStorage(StorageUnderTest(backend, folder, **LIMITS))
    for medium in (tracked.subject.disk, tracked.subject.database):
        if medium is not None:
            medium.calls.clear()
    return tracked


def count_operations(tracked: ModelCheckedStorage, steps: tuple[Step, ...]) -> list[str]:
    """Run the steps without faults, and return the operations of the disk."""
    for step in steps:
        step(tracked)
        tracked.commit()
    tracked.check()
    tracked.subject.check_that_its_disk_is_used()
    return tracked.subject.faulty_disk.calls.copy()


@requires("durable", "disk")
class DiskFaultTests(Backend):
    """A scenario of a few queues, repeated with a fault or a crash at each operation of the disk."""

    def test_acknowledged_changes_survive_each_failing_operation(self, tmp_path: Path) -> None:
        clean = start_storage(self, tmp_path / "clean")
        calls = Counter(count_operations(clean, tuple(STEPS)))
        clean.subject.end()
        for operation in FAILING:
            for number in range(calls[operation]):
                tracked = start_storage(self, tmp_path / f"{operation}-{number}")
                tracked.subject.faulty_disk.fail(operation, errno.EIO, times=1, after=number)
                run_steps(tracked, STEPS)
                check_recovery(tracked)

    def test_acknowledged_changes_survive_a_crash_at_each_operation(self, tmp_path: Path) -> None:
        clean = start_storage(self, tmp_path / "clean")
        calls = len(count_operations(clean, tuple(STEPS_WITH_A_DELETION)))
        clean.subject.end()
        for number in range(calls):
            tracked = start_storage(self, tmp_path / f"dies-after-{number}")
            disk = tracked.subject.faulty_disk
            disk.die_after(number)
            for step in STEPS_WITH_A_DELETION:
                try:
                    step(tracked)
                    tracked.commit()
                except (Exception, ProcessDied):
                    if not disk.is_dead:
                        raise
                if disk.is_dead:
                    break
            for again in (tracked.killed(), tracked.without_power()):
                put_after_the_crash(again)
                again.restarted().check()
            tracked.subject.bury()
            tracked.subject.end()


def put_after_the_crash(tracked: ModelCheckedStorage) -> None:
    """Check all queues, and put an item to each."""
    tracked.check()
    for name in list(tracked.models):
        tracked.put([name], b"after the crash")
    tracked.commit()
