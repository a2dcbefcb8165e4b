"""Commits: a storage acknowledges a batch when it is durable, and not earlier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import Backend, DeferredOutcome, StorageUnderTest
from kestrel.testing.contract.requirements import requires


class CommitTests(Backend):
    """Successful commits."""

    def test_commit_names_each_pending_queue_once(self, subject: StorageUnderTest) -> None:
        queues = [subject.queue(b"a+%d" % number, sync_journal_ms=0) for number in range(3)]
        for queue in queues:
            subject.put(queue, b"x")
        pairs = subject.storage.commit(queues)
        named = [id(queue) for group, _ in pairs for queue in group]
        assert set(named) <= {id(queue) for queue in queues}
        assert len(named) == len(set(named))
        outcomes = [DeferredOutcome(deferred) for _, deferred in pairs]
        subject.run_threads()
        assert all(outcome.is_there and not outcome.has_failed for outcome in outcomes)

    @pytest.mark.parametrize("sync_journal_ms", [None, 0, 500])
    def test_commit_without_changes_succeeds(self, subject: StorageUnderTest, sync_journal_ms: int | None) -> None:
        queue = subject.queue(sync_journal_ms=sync_journal_ms)
        subject.commit()
        subject.commit(queue)
        subject.commit(queue)
        assert queue.failure is None

    @pytest.mark.parametrize("sync_journal_ms", [None, 0, 500])
    def test_queue_can_be_used_while_a_commit_is_pending(
        self, subject: StorageUnderTest, sync_journal_ms: int | None
    ) -> None:
        queue = subject.queue_with(b"a", b"b", b"c", sync_journal_ms=sync_journal_ms)
        first = subject.begin_commit(queue)
        opened = queue.take(True)
        assert opened is not None
        subject.put(queue, b"d")
        assert queue.confirm([opened.xid]) == 1
        assert (queue.items, queue.open_reads) == (3, 0)
        subject.finish(first)
        subject.commit(queue)
        assert subject.take_all_data(queue) == [b"b", b"c", b"d"]

    def test_commits_of_two_queues_are_independent(self, subject: StorageUnderTest) -> None:
        first, second = subject.queue(b"a+x", sync_journal_ms=0), subject.queue(b"a+y", sync_journal_ms=0)
        subject.put(first, b"1")
        pending = subject.begin_commit(first)
        subject.put(second, b"2")
        subject.commit(second)
        subject.finish(pending)
        assert (subject.take_all_data(first), subject.take_all_data(second)) == ([b"1"], [b"2"])

    def test_new_settings_apply_to_the_live_queue(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a")
        assert subject.queue(sync_journal_ms=0) is queue
        subject.commit(queue)
        assert subject.take_all_data(queue) == [b"a"]

    # Durability.

    @requires("durable")
    @pytest.mark.parametrize("sync_journal_ms", [None, 0, 500])
    def test_acknowledged_commit_survives_a_kill(self, subject: StorageUnderTest, sync_journal_ms: int | None) -> None:
        queue = subject.queue(sync_journal_ms=sync_journal_ms)
        check_crash_after_each_job(subject, queue, lambda: subject.killed())

    @requires("durable", "disk")
    def test_synced_commit_survives_a_power_failure(self, subject: StorageUnderTest) -> None:
        queue = subject.queue(sync_journal_ms=0)
        check_crash_after_each_job(subject, queue, lambda: subject.without_power())

    @requires("durable", "disk")
    def test_periodic_sync_survives_a_power_failure_after_the_period(self, subject: StorageUnderTest) -> None:
        queue = subject.queue(sync_journal_ms=500)
        expected = []
        for number in range(3):
            expected.append(b"%d" % number)
            subject.put(queue, expected[-1])
            subject.commit(queue)
            subject.clock.advance(0.5)
            subject.run_threads()
            assert subject.without_power().data_in() == expected

    @requires("durable", "disk")
    def test_everything_survives_a_power_failure_after_a_clean_stop(self, subject: StorageUnderTest) -> None:
        for sync_journal_ms in (0, 500):
            queue = subject.queue(b"%d" % sync_journal_ms, sync_journal_ms=sync_journal_ms)
            subject.put(queue, b"a")
        subject.close()
        again = subject.without_power()
        assert [again.data_in(again.queue(name)) for name in (b"0", b"500")] == [[b"a"], [b"a"]]

    @requires("durable")
    def test_close_ends_a_pending_commit_first(self, tmp_path: Path) -> None:
        subject = StorageUnderTest(self, tmp_path / "queues", sync_journal_ms=0)
        queue = subject.queue_with(b"a")
        pending = subject.begin_commit(queue)
        again = subject.restarted()
        assert all(outcome.is_there and not outcome.has_failed for outcome in pending)
        assert again.take_all_data(again.queue()) == [b"a"]
        again.end()


def check_crash_after_each_job(
    subject: StorageUnderTest, queue: IQueueStorage, crashed: Callable[[], StorageUnderTest]
) -> None:
    """Commit changes of all kinds. After each job, check the state that a crash would leave."""
    expected: list[bytes] = []
    for number in range(4):
        before = expected.copy()
        expected += [b"%d-%d" % (number, each) for each in range(3)]
        subject.put(queue, *expected[-3:])
        if number:
            assert subject.get(queue).data == expected.pop(0)
            assert queue.confirm([subject.open(queue).xid]) == 1
            del expected[0]
        outcomes = subject.begin_commit(queue)
        while not all(outcome.is_there for outcome in outcomes):
            again = crashed()
            found = again.data_in(again.queue())
            taken = 2 if number else 0
            assert found in (before, expected) or expected[-1] not in found
            assert set(before[taken:]) <= set(found), "acknowledged items are missing"
            assert subject.threads, "a commit is pending, but no job is waiting"
            subject.threads.run_one()
        for outcome in outcomes:
            outcome.result()
        again = crashed()
        assert again.data_in(again.queue()) == expected
