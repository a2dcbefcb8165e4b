"""A storage over a failing database: batches that cannot be applied, and a lost ownership."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from kestrel.errors import DatabaseAway, QueueFailed, StorageError, StorageInUse, StorageRefused
from kestrel.testing.contract.backend import LONG_S, Backend, StorageUnderTest, new_folder
from kestrel.testing.contract.disk_faults import (
    STEPS_WITH_A_DELETION,
    begin,
    check_recovery,
    check_remaining_items,
    commit_fails,
    lose_item,
    run_steps,
    start_storage,
)
from kestrel.testing.contract.requirements import ADD_MS, requires

NAMES: Final = [b"a", b"a+x", b"a+y", b"other"]


@requires("durable", "has_faulty_database")
class DatabaseCommitFailureTests(Backend):
    """Batches that cannot be applied: their queues fail, and applied batches remain."""

    def test_commit_of_a_failed_queue_fails_after_a_reopen(self, subject: StorageUnderTest) -> None:
        queue, _ = begin(subject)
        lose_item(subject, queue, "apply")
        assert subject.reopened() is not queue
        assert commit_fails(subject, queue)
        check_remaining_items(subject, [b"a", b"b", b"c"])

    # Many queues in one batch.

    def test_failure_of_one_queue_spares_the_others(self, subject: StorageUnderTest) -> None:
        queues = [subject.queue(name) for name in NAMES]
        subject.store_in_all(queues, b"safe")
        subject.storage.put(queues, b"new", ADD_MS, 0)
        subject.faulty_database.fail_changes_of(b"a+y")
        assert subject.failed_queues(queues) == [queues[2]]
        subject.faulty_database.mend()
        assert [queue.failure is None for queue in queues] == [True, True, False, True]
        expected = [[b"safe"] if name == b"a+y" else [b"safe", b"new"] for name in NAMES]
        assert [subject.data_in(subject.reopened(name)) for name in NAMES] == expected
        again = subject.restarted()
        assert [again.data_in(again.queue(name)) for name in NAMES] == expected

    def test_batch_of_many_queues_is_retried_per_queue(self, subject: StorageUnderTest) -> None:
        queues = [subject.queue(name) for name in NAMES]
        subject.storage.put(queues, b"new", ADD_MS, 0)
        subject.faulty_database.fail("apply", StorageError("not all of that together"), times=1)
        subject.commit(*queues)
        assert [queue.failure for queue in queues] == [None] * len(queues)
        again = subject.restarted()
        assert [again.data_in(again.queue(name)) for name in NAMES] == [[b"new"]] * len(NAMES)

    def test_failed_deletion_leaves_the_queue_unchanged(self, subject: StorageUnderTest) -> None:
        queue, _ = begin(subject)
        subject.storage.delete(queue)
        subject.faulty_database.fail_changes_of(b"work")
        assert commit_fails(subject, queue)
        subject.faulty_database.mend()
        check_remaining_items(subject, [b"a", b"b", b"c"])

    def test_new_queue_is_empty_after_a_failed_deletion(self, subject: StorageUnderTest) -> None:
        old, _ = begin(subject)
        subject.storage.delete(old)
        new = subject.queue()
        subject.put(new, b"new")
        subject.faulty_database.fail("apply", StorageError("the database cannot do that"), times=1)
        commit_fails(subject, old)
        subject.commit(new)
        check_remaining_items(subject, [b"new"])

    def test_close_applies_nothing_after_a_failed_batch(self, subject: StorageUnderTest) -> None:
        queue, xid = begin(subject)
        subject.put(queue, b"lost")
        subject.faulty_database.fail("apply", StorageError("the database cannot do that"), times=1)
        pending = subject.begin_commit(queue)
        queue.confirm([xid])
        subject.put(queue, b"behind it")
        again = subject.restarted()
        assert [outcome.has_failed for outcome in pending] == [True]
        assert again.take_all_data(again.queue()) == [b"a", b"b", b"c"]

    # A full database.

    def test_put_without_room_fails_only_its_queue(self, subject: StorageUnderTest) -> None:
        queues = [subject.queue(name) for name in NAMES]
        subject.store_in_all(queues, b"safe")
        for queue in queues[1:]:
            subject.get(queue)
        subject.put(queues[0], b"lost")
        subject.faulty_database.refuse_puts()
        assert subject.failed_queues(queues) == [queues[0]]
        assert [queue.failure is None for queue in queues] == [False, True, True, True]
        assert [subject.data_in(subject.reopened(name)) for name in NAMES] == [[b"safe"], [], [], []]

    def test_puts_are_refused_until_there_is_room(self, subject: StorageUnderTest) -> None:
        queue, _ = begin(subject)
        subject.put(queue, b"lost")
        subject.faulty_database.refuse_puts()
        assert commit_fails(subject, queue)
        queue = subject.reopened()
        assert bool(subject.storage.refusal)
        with pytest.raises(StorageRefused):
            subject.put(queue, b"refused")
        subject.faulty_database.mend()
        subject.clock.advance(LONG_S)
        assert subject.storage.refusal is None
        subject.store(queue, b"d")
        check_remaining_items(subject, [b"a", b"b", b"c", b"d"])

    # Another owner.

    def test_lost_ownership_fails_all_queues(self, subject: StorageUnderTest) -> None:
        queue, xid = begin(subject)
        other = subject.queue(b"other")
        subject.store(other, b"safe")
        database = subject.faulty_database
        database.lose_ownership()
        subject.put(queue, b"lost")
        subject.put(other, b"lost")
        assert commit_fails(subject, queue)
        assert subject.storage.refusal
        for each in (queue, other):
            with pytest.raises(StorageError):
                subject.put(each, b"too late")
        with pytest.raises(QueueFailed):
            queue.confirm([xid])
        with pytest.raises(QueueFailed):
            # It is in memory, but it belongs to the other owner.
            other.take(True)
        database.mend()
        assert commit_fails(subject, other)
        for name in (b"work", b"other", b"never used"):
            with pytest.raises(QueueFailed):
                subject.queue(name)
        subject.clock.advance(LONG_S)
        subject.run_threads()
        again = subject.killed()
        assert (again.data_in(again.queue()), again.data_in(again.queue(b"other"))) == ([b"a", b"b", b"c"], [b"safe"])

    def test_storage_without_ownership_can_be_closed(self, subject: StorageUnderTest) -> None:
        queue, _ = begin(subject)
        subject.faulty_database.lose_ownership()
        subject.put(queue, b"lost")
        assert commit_fails(subject, queue)
        again = subject.restarted()
        assert subject.faulty_database.is_closed
        assert again.data_in(again.queue()) == [b"a", b"b", b"c"]

    # Starts.

    @pytest.mark.parametrize("error", [StorageInUse("another server has it"), StorageError("it cannot be reached")])
    def test_failed_start_reports_the_reason_and_can_be_closed(
        self, subject: StorageUnderTest, error: StorageError
    ) -> None:
        storage = self.make(new_folder(subject.folder), subject.clock, subject.threads)
        database = self.database
        assert database is not None
        database.fail("list_queues", error)
        with pytest.raises(type(error), match=str(error)):
            subject.wait(storage.start(lambda name: subject.settings))
        subject.wait(storage.close())
        assert (database.calls, database.complaints) == (["list_queues", "close"], [])

    def test_closing_a_second_owner_leaves_the_first_unaffected(self, subject: StorageUnderTest) -> None:
        queue, xid = begin(subject)
        queue.put_back([xid], False)
        second = self.make(subject.folder, subject.clock, subject.threads)
        with pytest.raises(StorageError):
            subject.wait(second.start(lambda name: subject.settings))
        subject.wait(second.close())
        third = self.make(subject.folder, subject.clock, subject.threads)
        with pytest.raises(StorageError):
            subject.wait(third.start(lambda name: subject.settings))
        subject.wait(third.close())
        subject.store(queue, b"d")
        check_remaining_items(subject, [b"a", b"b", b"c", b"d"])


CANNOT: Final = StorageError("the database cannot do that")
AWAY: Final = DatabaseAway("the database does not answer")

FAULTS: Final = (
    pytest.param("apply", CANNOT, 1, False, id="fails once"),
    # The second failure is that of the first queue alone.
    pytest.param("apply", CANNOT, 2, False, id="fails individually"),
    pytest.param("apply", StorageRefused("the database has no room"), 2, False, id="has no room"),
    pytest.param("apply", AWAY, 2, False, id="is away"),
    pytest.param("apply", AWAY, 2, True, id="loses the answer"),
    pytest.param("read_after", CANNOT, 1, False, id="cannot read"),
)
"""The faults to try: operation, error, number of failures, and True if the operation is done."""


@requires("durable", "has_faulty_database")
class DatabaseFaultTests(Backend):
    """A scenario of a few queues, repeated with a fault at each call of the database."""

    @pytest.mark.parametrize(("operation", "error", "times", "is_done"), FAULTS)
    def test_acknowledged_changes_survive_each_failing_call(
        self, tmp_path: Path, operation: str, error: StorageError, times: int, is_done: bool
    ) -> None:
        clean = start_storage(self, tmp_path / "clean")
        run_steps(clean, STEPS_WITH_A_DELETION)
        clean.check()
        calls = Counter(clean.subject.faulty_database.calls)[operation]
        assert calls > 0
        clean.subject.end()
        for number in range(calls):
            tracked = start_storage(self, tmp_path / f"fails-{number}")
            tracked.subject.faulty_database.fail(operation, error, times=times, after=number, is_done=is_done)
            run_steps(tracked, STEPS_WITH_A_DELETION)
            check_recovery(tracked)
