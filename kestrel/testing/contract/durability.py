"""Durability: commits, the contents after an orderly stop and after a crash, and compaction.

A storage acknowledges a batch when it is durable, and not earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.errors import StorageError
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import Backend, DeferredOutcome, StorageUnderTest
from kestrel.testing.contract.model_check import ModelCheckedStorage
from kestrel.testing.contract.requirements import requires
from kestrel.testing.threads import SteppedThreads


@requires("durable")
class RestartTests(Backend):
    """Storages that are stopped or killed, and started again."""

    # Owners.

    def test_second_storage_is_refused_and_the_first_continues(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a")
        threads = SteppedThreads()
        second = self.make(subject.folder, Clock(), threads)
        with pytest.raises(StorageError):
            starting = DeferredOutcome(second.start(lambda name: QueueSettings()))
            while threads:
                threads.run_one()
            starting.result()
        subject.commit(queue)
        assert subject.take_all_data(queue) == [b"a"]

    def test_closed_storage_releases_its_folder(self, subject: StorageUnderTest) -> None:
        assert subject.restarted().loaded == {}

    # Restarts.

    def test_queues_of_a_start_are_the_live_ones(self, subject: StorageUnderTest) -> None:
        subject.put(subject.queue(b"a"), b"1")
        again = subject.restarted()
        assert again.loaded[b"a"] is again.queue(b"a")

    def test_restart_reports_the_number_of_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"four", b"five5", b"")
        subject.get(queue)
        subject.open(queue)
        again = subject.restarted().queue()
        assert (again.replayed_items, again.items, again.bytes, again.open_reads) == (2, 2, 5, 0)

    def test_restart_keeps_empty_queues(self, subject: StorageUnderTest) -> None:
        subject.queue(b"parent+child")
        assert list(subject.restarted().loaded) == [b"parent+child"]

    def test_restart_does_not_restore_items_confirmed_out_of_order(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(*[b"%d" % number for number in range(6)])
        xids = [subject.open(queue).xid for _ in range(5)]
        queue.confirm([xids[3], xids[1]])
        subject.commit(queue)
        assert subject.restarted().take_all_data() == [b"0", b"2", b"4", b"5"]

    def test_xid_is_not_open_after_a_restart(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a")
        xid = subject.open(queue).xid
        again = subject.restarted().queue()
        assert (again.is_open(xid), again.confirm([xid]), again.items) == (False, 0, 1)

    def test_restart_puts_open_reads_back_in_order(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(*[b"%d" % number for number in range(6)])
        xids = [subject.open(queue).xid for _ in range(4)]
        queue.confirm([xids[1]])
        assert subject.restarted().take_all_data() == [b"0", b"2", b"3", b"4", b"5"]

    @requires("order_kept")
    def test_restart_keeps_the_order_of_put_back_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b", b"c", b"d")
        a, b, c = (subject.open(queue).xid for _ in range(3))
        queue.put_back([c, a, b], False)
        again = subject.restarted().restarted()
        assert again.take_all_data(again.queue()) == [b"c", b"a", b"b", b"d"]

    @requires("errors_kept")
    def test_restart_keeps_error_counts(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"failed twice", b"never failed", b"open")
        for _ in range(2):
            queue.put_back([subject.open(queue).xid], True)
        first, second = subject.open(queue), subject.open(queue)
        subject.open(queue)
        queue.put_back([first.xid, second.xid], False)
        for _ in range(2):
            subject = subject.restarted()
            errors = {item.data: item.errors for item in subject.look_through(subject.queue())}
            assert errors == {b"failed twice": 2, b"never failed": 0, b"open": 0}

    def test_queue_works_over_many_restarts(self, subject: StorageUnderTest) -> None:
        expected: list[bytes] = []
        for turn in range(10):
            queue = subject.queue()
            items = [b"%d-%d" % (turn, number) for number in range(5)]
            subject.put(queue, *items)
            expected += items
            assert [subject.get(queue).data for _ in range(3)] == expected[:3]
            del expected[:3]
            subject.commit(queue)
            subject = subject.restarted()
        assert subject.take_all_data(subject.queue()) == expected

    # Kills.

    def test_kill_after_a_commit_loses_nothing(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b", b"c", b"d")
        subject.get(queue)
        queue.confirm([subject.open(queue).xid])
        subject.open(queue)
        subject.commit(queue)
        assert subject.killed().take_all_data() == [b"c", b"d"]

    def test_kill_loses_only_the_end_of_uncommitted_changes(self, subject: StorageUnderTest) -> None:
        queue = subject.stored_queue(b"a", b"b")
        history = [[b"a", b"b"]]
        for data in (b"c", b"d", b"e"):
            subject.put(queue, data)
            history.append([*history[-1], data])
            again = subject.killed()
            assert again.take_all_data(again.queue()) in history

    def test_second_kill_finds_the_same_items(self, subject: StorageUnderTest) -> None:
        queue = subject.queue_with(b"a", b"b", b"c")
        subject.open(queue)
        subject.commit(queue)
        first = subject.killed()
        second = first.killed()
        assert first.take_all_data(first.queue()) == second.take_all_data(second.queue()) == [b"a", b"b", b"c"]

    def test_unused_folder_is_an_empty_storage(self, tmp_path: Path) -> None:
        subject = StorageUnderTest(self, tmp_path / "new")
        assert subject.loaded == {}
        subject.end()


PUT_BYTES = 100_000
KEPT_BYTES = 30_000
"""The bytes that a storage may still take after all but a few items are gone."""


@requires("durable")
class UpkeepTests(Backend):
    """Compaction with `upkeep_settings`."""

    @pytest.fixture
    def kept_small(self, tmp_path: Path) -> Iterator[StorageUnderTest]:
        """Provide a storage with limits of a few kilobytes."""
        subject = StorageUnderTest(self, tmp_path / "kept-small", **self.upkeep_settings)
        yield subject
        subject.end()

    def test_space_of_taken_items_is_freed(self, kept_small: StorageUnderTest) -> None:
        queue = kept_small.queue()
        items = [b"%05d" % number * 20 for number in range(PUT_BYTES // 100)]
        for number, data in enumerate(items):
            kept_small.put(queue, data)
            if number % 20 == 19:
                kept_small.commit(queue)
        for number, data in enumerate(items[:-3]):
            assert kept_small.get(queue).data == data
            if number % 20 == 19:
                kept_small.commit(queue)
        kept_small.commit(queue)
        self.compact(kept_small, queue)
        assert queue.disk_bytes < KEPT_BYTES
        self._check_that_it_is_small(kept_small)
        assert kept_small.data_in(queue) == items[-3:]
        assert kept_small.restarted().take_all_data() == items[-3:]

    def test_space_of_deleted_queues_is_freed(self, kept_small: StorageUnderTest) -> None:
        old = kept_small.queue()
        for _ in range(PUT_BYTES // 1000):
            kept_small.store(old, *[b"." * 100] * 10)
        kept_small.storage.delete(old)
        new = kept_small.queue()
        kept_small.commit(old, new)
        self.compact(kept_small, new)
        self._check_that_it_is_small(kept_small)
        assert kept_small.take_all_data(new) == []

    def _check_that_it_is_small(self, subject: StorageUnderTest) -> None:
        taken = self.taken_bytes(subject)
        assert taken < KEPT_BYTES, (
            f"taken_bytes() is {taken} and should be below {KEPT_BYTES}; override taken_bytes() if it counts free space"
            " that the storage will reuse"
        )

    def test_maintenance_does_not_grow_an_idle_queue(self, kept_small: StorageUnderTest) -> None:
        queue = kept_small.stored_queue(*[b"%03d" % number for number in range(50)])
        self.compact(kept_small, queue)
        size = queue.disk_bytes
        for _ in range(3):
            self.compact(kept_small, queue)
            assert queue.disk_bytes <= size
        assert (queue.items, queue.bytes) == (50, 150)

    def test_maintenance_keeps_the_items(self, kept_small: StorageUnderTest) -> None:
        tracked = ModelCheckedStorage(kept_small)
        names = [b"a", b"a+x", b"a+y", b"other"]
        for turn in range(30):
            for number in range(5):
                tracked.put(names, b"%d-%d;" % (turn, number) * 10, expires=number == 3)
            for name in names[:3]:
                tracked.take(name, opened=True)
                tracked.take(name, opened=turn % 3 == 0)
            opened = list(tracked.models[b"a+x"].opened)
            tracked.put_back(b"a+x", opened[1::3], failed=True)
            tracked.confirm(b"a+x", opened[2::3])
            tracked.compact(names[turn % 4])
            tracked.check()
        killed = tracked.killed()
        killed.check()
        for name in names:
            killed.compact(name)
        killed.check()
        killed.restarted().check()


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
        subject.store(second, b"2")
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
            subject.store(queue, expected[-1])
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
