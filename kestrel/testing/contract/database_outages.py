"""Outages of the database: no item is lost or duplicated, and operations in memory continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from kestrel.errors import QueueFailed, StorageError, StorageRefused
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import DeferredOutcome, StorageUnderTest
from kestrel.testing.contract.disk_faults import begin, check_remaining_items
from kestrel.testing.contract.requirements import requires
from kestrel.testing.contract.window import WindowedBackend

CLOSE_S: Final = 10.0
"""The maximum time in seconds that a stop waits for an unreachable database."""


def begin_commit(subject: StorageUnderTest, *queues: IQueueStorage) -> list[DeferredOutcome]:
    """Begin a commit, run the threads, and return the outcomes."""
    outcomes = subject.begin_commit(*queues)
    subject.run_threads()
    return outcomes


@contextmanager
def outage(subject: StorageUnderTest, *queues: IQueueStorage, is_done: bool) -> Iterator[None]:
    """Begin to commit the queues while the database is away. After the block it returns, and the commits succeed."""
    subject.faulty_database.go_away(is_done=is_done)
    outcomes = begin_commit(subject, *queues)
    assert is_waiting_in_vain(outcomes)
    yield
    assert is_waiting_in_vain(outcomes)
    subject.faulty_database.mend()
    subject.finish(outcomes)


def pass_time(subject: StorageUnderTest, seconds: float) -> None:
    """Move the clock forward in small steps, and run the threads after each."""
    until_s = subject.clock.seconds() + seconds
    while subject.clock.seconds() < until_s:
        subject.clock.advance(0.1)
        subject.run_threads()


def is_waiting_in_vain(outcomes: list[DeferredOutcome]) -> bool:
    """Return True if there are outcomes and none has fired."""
    return bool(outcomes) and not any(outcome.is_there for outcome in outcomes)


@requires("durable", "has_faulty_database")
class DatabaseOutageTests(WindowedBackend):
    """A connection that is lost during a batch, so that it is unknown whether the batch was applied."""

    @pytest.fixture(params=[False, True], ids=["before it applies", "before it says so"])
    def is_done(self, request: pytest.FixtureRequest) -> bool:
        """Provide the moment when the connection is lost: False before the batch is applied, True after it."""
        is_done: bool = request.param
        return is_done

    def test_commits_wait_for_the_database_and_apply_once(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, xid = begin(subject)
        subject.put(queue, b"d")
        queue.confirm([xid])
        with outage(subject, queue, is_done=is_done):
            pass_time(subject, 30.0)
            assert queue.failure is None
        check_remaining_items(subject, [b"b", b"c", b"d"])

    def test_repeated_outages_lose_nothing(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, xid = begin(subject)
        queue.put_back([xid], True)
        expected = [b"a", b"b", b"c"]
        for number in range(5):
            expected.append(b"%d" % number)
            subject.put(queue, expected[-1])
            assert subject.get(queue).data == expected.pop(0)
            with outage(subject, queue, is_done=bool((number + is_done) % 2)):
                subject.faulty_database.mend()
                subject.faulty_database.go_away(is_done=is_done)
                pass_time(subject, 6.0)
        check_remaining_items(subject, expected)

    def test_puts_are_refused_during_an_outage(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, xid = begin(subject)
        queue.put_back([xid], False)
        other = subject.queue(b"other")
        subject.put(queue, b"d")
        with outage(subject, queue, is_done=is_done):
            assert bool(subject.storage.refusal)
            with pytest.raises(StorageRefused):
                subject.storage.put([queue, other], b"refused", 1, 0)
            assert (queue.items, other.items) == (4, 0)
        assert subject.storage.refusal is None
        subject.put(queue, b"e")
        subject.commit(queue, other)
        check_remaining_items(subject, [b"a", b"b", b"c", b"d", b"e"])

    def test_items_in_memory_are_served_during_an_outage(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, xid = begin(subject)
        subject.put(queue, b"d", b"e")
        with outage(subject, queue, is_done=is_done):
            assert queue.confirm([xid]) == 1
            assert [subject.get(queue).data for _ in range(2)] == [b"b", b"c"]
            queue.put_back([subject.open(queue).xid], True)
            again = subject.open(queue)
            assert (again.data, again.errors) == (b"d", 1)
        subject.commit(queue)
        later = subject.restarted()
        expected = {b"d": 1 if "errors_kept" in self.capabilities else 0, b"e": 0}
        assert {item.data: item.errors for item in later.look_through(later.queue())} == expected

    def test_outage_delays_commits_of_all_queues(self, subject: StorageUnderTest, is_done: bool) -> None:
        names = [b"a", b"a+x", b"other"]
        queues = [subject.queue_with(name, name=name) for name in names]
        subject.faulty_database.go_away(is_done=is_done)
        outcomes = [outcome for queue in queues for outcome in begin_commit(subject, queue)]
        assert len(outcomes) == len(names)
        pass_time(subject, 7.0)
        assert is_waiting_in_vain(outcomes)
        subject.faulty_database.mend()
        subject.finish(outcomes)
        again = subject.killed()
        assert [again.take_all_data(again.queue(name)) for name in names] == [[name] for name in names]

    def test_queue_can_be_cleared_during_an_outage(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, xid = begin(subject)
        subject.put(queue, b"d")
        with outage(subject, queue, is_done=is_done):
            queue.clear()
            pass_time(subject, 3.0)
        subject.store(queue, b"e")
        assert queue.is_open(xid)
        assert subject.killed().data_in() == [b"a", b"e"]

    def test_queue_can_be_deleted_during_an_outage(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, _ = begin(subject)
        subject.put(queue, b"d")
        subject.faulty_database.go_away(is_done=is_done)
        outcomes = begin_commit(subject, queue)
        subject.storage.delete(queue)
        new = subject.queue()
        assert (new.items, new.open_reads) == (0, 0)
        pass_time(subject, 3.0)
        subject.faulty_database.mend()
        subject.until_fired(outcomes[0])
        subject.put(new, b"new")
        subject.commit(queue, new)
        check_remaining_items(subject, [b"new"])

    def test_queue_can_be_recreated_before_its_deletion_is_applied(self, subject: StorageUnderTest) -> None:
        queue, _ = begin(subject)
        subject.faulty_database.hold("apply")
        outcomes = []
        for turn in range(3):
            subject.storage.delete(queue)
            outcomes += begin_commit(subject, queue)
            queue = subject.queue()
            assert (queue.items, queue.open_reads) == (0, 0)
            subject.put(queue, b"%d" % turn)
        assert is_waiting_in_vain(outcomes)
        subject.faulty_database.release("apply")
        subject.finish(outcomes)
        subject.commit(queue)
        check_remaining_items(subject, [b"2"])

    def test_batch_that_fails_after_an_outage_is_lost(self, subject: StorageUnderTest) -> None:
        queue, _ = begin(subject)
        subject.put(queue, b"d")
        subject.faulty_database.go_away()
        outcomes = begin_commit(subject, queue)
        pass_time(subject, 1.0)
        subject.faulty_database.mend()
        subject.faulty_database.fail_changes_of(b"work")
        for outcome in outcomes:
            subject.until_fired(outcome)
        assert [outcome.has_failed for outcome in outcomes] == [True]
        assert subject.storage.refusal is None
        subject.faulty_database.mend()
        check_remaining_items(subject, [b"a", b"b", b"c"])

    def test_kill_during_an_outage_leaves_whole_batches(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, xid = begin(subject)
        subject.put(queue, b"d")
        queue.confirm([xid])
        subject.faulty_database.go_away(is_done=is_done)
        begin_commit(subject, queue)
        assert subject.killed().data_in() == ([b"b", b"c", b"d"] if is_done else [b"a", b"b", b"c"])

    # Reads.

    def test_head_behind_the_window_is_unavailable_during_an_outage(self, small: StorageUnderTest) -> None:
        items = [b"%02d" % number * 20 for number in range(30)]
        small.put(small.queue(), *items)
        again = small.restarted()
        queue = again.queue()
        again.faulty_database.go_away()
        for _ in range(2):
            assert queue.peek() is None
            filling = queue.fill()
            assert filling is not None
            with pytest.raises(StorageError):
                again.wait(filling)
            assert (queue.failure, queue.items) == (None, len(items))
        again.faulty_database.mend()
        assert again.take_all_data(queue) == items

    # Stops.

    def test_close_waits_for_the_database(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, _ = begin(subject)
        subject.put(queue, b"d")
        subject.faulty_database.go_away(is_done=is_done)
        pending = begin_commit(subject, queue)
        queue.take(False)
        closing = subject.begin_close()
        pass_time(subject, 1.0)
        assert is_waiting_in_vain([closing])
        subject.faulty_database.mend()
        pass_time(subject, CLOSE_S)
        assert closing.is_there
        assert [outcome.has_failed for outcome in pending] == [False]
        assert all(outcome.is_there for outcome in pending)
        assert subject.faulty_database.is_closed
        assert subject.killed().data_in() == [b"a", b"c", b"d"]

    def test_close_gives_up_and_fails_pending_commits(self, subject: StorageUnderTest, is_done: bool) -> None:
        queue, _ = begin(subject)
        subject.put(queue, b"d")
        subject.faulty_database.go_away(is_done=is_done)
        pending = begin_commit(subject, queue)
        closing = subject.begin_close()
        pass_time(subject, CLOSE_S + 1)
        assert closing.is_there
        closing.result()
        assert [outcome.has_failed for outcome in pending] == [True]
        assert subject.faulty_database.is_closed
        with pytest.raises(QueueFailed):
            queue.peek()
        assert subject.killed().data_in() == [b"a", b"b", b"c", *[b"d"] * is_done]

    @pytest.mark.parametrize("is_lost", [False, True], ids=["answered late", "lost late"])
    def test_close_gives_up_and_ignores_late_replies(self, subject: StorageUnderTest, is_lost: bool) -> None:
        queue, _ = begin(subject)
        subject.put(queue, b"d")
        if is_lost:
            subject.faulty_database.go_away(is_done=True)
        subject.faulty_database.hold("apply")
        pending = begin_commit(subject, queue)
        closing = subject.begin_close()
        pass_time(subject, CLOSE_S + 1)
        assert closing.is_there
        assert [outcome.has_failed for outcome in pending] == [True]
        subject.faulty_database.mend()
        pass_time(subject, CLOSE_S)
        assert subject.faulty_database.calls[-1] == "close"
        assert subject.killed().data_in() == [b"a", b"b", b"c", b"d"]
