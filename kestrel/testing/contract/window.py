"""Queues larger than their memory limit: fills, operations during a fill, and fills that fail or come late."""

from __future__ import annotations

from typing import Final

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import QueueFailed, StorageError
from kestrel.testing.contract.backend import Backend, DeferredOutcome, StorageUnderTest, started_storage
from kestrel.testing.contract.requirements import requires

ITEMS = [b"%03d" % number * 20 for number in range(60)]
MEMORY_BYTES = 300


COMMITTED: Final = pytest.mark.parametrize("is_committed", [True, False])


class WindowedBackend(Backend):
    """The base class of tests with queues that keep five items in memory."""

    small = started_storage("small", max_memory_size_bytes=MEMORY_BYTES)
    """A storage whose queues hold 300 bytes in memory."""


class PagedOutQueue:
    """A queue whose head is paged out: some of `ITEMS` were taken, the first one is open, and a fill is pending.

    With `is_late` the database has read the items for the fill, but its answer is held back.
    """

    def __init__(self, small: StorageUnderTest, *, is_late: bool = False) -> None:
        self._small = small
        self._is_late = is_late
        if is_late:
            small.faulty_database.hold("read_after")
        self.queue = small.stored_queue(*ITEMS)
        self.left = ITEMS.copy()
        """The data of the items in the queue."""
        first = small.open(self.queue)
        self.xid = first.xid
        assert first.data == self.left.pop(0)
        filling = self._take_until_a_fill()
        if is_late:
            small.run_threads()
            assert small.faulty_database.held("read_after") == 1
        self.filling = DeferredOutcome(filling)

    def _take_until_a_fill(self) -> Deferred[None]:
        while len(self.left) > 5:
            item = self.queue.take(False)
            if item is not None:
                assert item.data == self.left.pop(0)
                continue
            filling = self.queue.fill()
            if filling is not None:
                return filling
        raise AssertionError("has_window is set, but the backend keeps all items in memory")

    def commit_if(self, is_committed: bool) -> None:
        """Commit the queue, or do nothing."""
        if is_committed:
            self._small.commit(self.queue)

    def end_fill(self) -> None:
        """Let the database answer, and check that the fill fires. Commit if it does not fire otherwise."""
        if self._is_late:
            assert not self.filling.is_there, "fill fired before the answer came"
            self._small.faulty_database.release("read_after")
            self._small.run_threads()
        else:
            self._small.wait_for_fill(self.queue, self.filling)
        assert self.filling.is_there, "the answer came, but fill has not fired"
        self.filling.result()


@requires("has_window")
class WindowTests(WindowedBackend):
    """Successful fills."""

    @COMMITTED
    def test_items_beyond_the_limit_are_read_in_order(self, small: StorageUnderTest, is_committed: bool) -> None:
        queue = small.queue_with(*ITEMS)
        if is_committed:
            small.commit(queue)
            assert queue.mem_items < queue.items == len(ITEMS)
            assert queue.mem_bytes < queue.bytes == sum(map(len, ITEMS))
        assert small.take_all_data(queue) == ITEMS
        assert (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes) == (0, 0, 0, 0)

    def test_alternating_puts_and_takes_keep_the_order(self, small: StorageUnderTest) -> None:
        queue = small.queue()
        put, taken = 0, 0
        for turn in range(30):
            for _ in range(8):
                small.put(queue, b"%04d" % put * 10)
                put += 1
            if turn % 3:
                small.commit(queue)
            for _ in range(7):
                assert small.get(queue).data == b"%04d" % taken * 10
                taken += 1
        assert queue.items == put - taken
        assert small.take_all_data(queue) == [b"%04d" % number * 10 for number in range(taken, put)]

    @requires("durable")
    def test_restart_keeps_all_items_and_the_memory_limit(self, small: StorageUnderTest) -> None:
        queue = small.stored_queue(*ITEMS)
        again = small.restarted()
        queue = again.queue()
        assert queue.mem_items < queue.items == len(ITEMS)
        assert again.take_all_data(queue) == ITEMS

    # Operations during a fill.

    @pytest.fixture
    def paged(self, small: StorageUnderTest, is_late: bool) -> PagedOutQueue:
        """Provide a queue with a pending fill. With `is_late`, it waits for the answer of the database."""
        return PagedOutQueue(small, is_late=is_late)

    def test_fill_loads_the_head(self, small: StorageUnderTest, paged: PagedOutQueue) -> None:
        assert (paged.queue.items, paged.queue.open_reads) == (len(paged.left), 1)
        paged.end_fill()
        assert small.take_all_data(paged.queue) == paged.left

    @COMMITTED
    def test_queue_can_be_cleared_during_a_fill(
        self, small: StorageUnderTest, paged: PagedOutQueue, is_committed: bool
    ) -> None:
        queue = paged.queue
        queue.clear()
        paged.commit_if(is_committed)
        assert (queue.items, queue.bytes, queue.mem_items, queue.peek(), queue.take(False)) == (0, 0, 0, None, None)
        paged.end_fill()
        assert (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes, queue.open_reads) == (0, 0, 0, 0, 1)
        assert small.take_all_data(queue) == []
        queue.put_back([paged.xid], False)
        assert small.take_all_data(queue) == ITEMS[:1]

    @COMMITTED
    def test_queue_can_be_cleared_and_filled_during_a_fill(
        self, small: StorageUnderTest, paged: PagedOutQueue, is_committed: bool
    ) -> None:
        paged.queue.clear()
        small.put(paged.queue, b"new", *ITEMS)
        paged.commit_if(is_committed)
        paged.end_fill()
        assert small.take_all_data(paged.queue) == [b"new", *ITEMS]

    @COMMITTED
    def test_items_can_be_put_during_a_fill(
        self, small: StorageUnderTest, paged: PagedOutQueue, is_committed: bool
    ) -> None:
        small.put(paged.queue, b"first", *ITEMS)
        paged.commit_if(is_committed)
        small.put(paged.queue, b"not committed")
        assert paged.queue.items == len(paged.left) + len(ITEMS) + 2
        paged.end_fill()
        assert small.take_all_data(paged.queue) == [*paged.left, b"first", *ITEMS, b"not committed"]

    @COMMITTED
    def test_put_back_during_a_fill_becomes_the_head(
        self, small: StorageUnderTest, paged: PagedOutQueue, is_committed: bool
    ) -> None:
        paged.queue.put_back([paged.xid], False)
        head = paged.queue.take(True)
        assert head is not None
        assert head.data == ITEMS[0]
        paged.queue.put_back([head.xid], True)
        paged.commit_if(is_committed)
        paged.end_fill()
        assert small.take_all_data(paged.queue) == [ITEMS[0], *paged.left]

    @COMMITTED
    def test_open_read_can_be_confirmed_during_a_fill(
        self, small: StorageUnderTest, paged: PagedOutQueue, is_committed: bool
    ) -> None:
        assert paged.queue.confirm([paged.xid]) == 1
        paged.commit_if(is_committed)
        paged.end_fill()
        assert small.take_all_data(paged.queue) == paged.left

    def test_queue_can_be_committed_during_a_fill(self, small: StorageUnderTest, paged: PagedOutQueue) -> None:
        paged.queue.confirm([paged.xid])
        small.store(paged.queue, b"new")
        paged.end_fill()
        assert small.take_all_data(paged.queue) == [*paged.left, b"new"]

    def test_deletion_during_a_fill_discards_the_read(self, small: StorageUnderTest) -> None:
        paged = PagedOutQueue(small)
        small.storage.delete(paged.queue)
        new = small.queue()
        small.put(new, b"new")
        small.commit(paged.queue, new)
        small.run_threads()
        assert paged.filling.is_there
        assert small.take_all_data(new) == [b"new"]

    def test_storage_can_be_closed_during_a_fill(self, small: StorageUnderTest) -> None:
        paged = PagedOutQueue(small)
        small.close()
        small.run_threads()
        assert paged.filling.is_there


@requires("has_window", "commit_faults")
class WindowFaultTests(WindowedBackend):
    """Failed fills."""

    def test_failed_fill_changes_nothing_and_can_be_repeated(self, small: StorageUnderTest) -> None:
        paged = PagedOutQueue(small)
        queue, left = paged.queue, paged.left
        small.fail_reads()
        small.run_threads()
        assert paged.filling.has_failed
        assert (queue.failure, queue.items, queue.bytes) == (None, len(left), sum(map(len, left)))
        assert (queue.open_reads, queue.is_open(paged.xid), queue.peek(), queue.take(False)) == (1, True, None, None)
        filling_again = queue.fill()
        assert filling_again is not None
        with pytest.raises(StorageError):
            small.wait(filling_again)
        small.mend()
        assert small.take_all_data(queue) == left


@requires("durable", "has_faulty_database")
class DatabaseReadTests(WindowedBackend):
    """Late answers and failed reads: a storage drops an answer that is no longer valid."""

    # Reads that fail.

    def test_failed_read_ahead_fails_no_call(self, small: StorageUnderTest) -> None:
        queue = small.stored_queue(*ITEMS)
        left = ITEMS.copy()
        for _ in range(10):
            small.faulty_database.mend()
            assert small.get(queue).data == left.pop(0)
            small.fail_reads()
            item = queue.take(False)
            if item is not None:
                assert item.data == left.pop(0)
            small.run_threads()
        small.faulty_database.mend()
        assert small.take_all_data(queue) == left

    def test_puts_and_commits_work_while_reads_fail(self, small: StorageUnderTest) -> None:
        paged = PagedOutQueue(small)
        small.fail_reads()
        small.put(paged.queue, b"new")
        paged.queue.confirm([paged.xid])
        small.commit(paged.queue)
        assert paged.filling.has_failed
        assert small.killed().data_in() == [*paged.left, b"new"]

    # Answers that come late, also in `WindowTests`.

    @COMMITTED
    def test_read_before_a_deletion_is_discarded(self, small: StorageUnderTest, is_committed: bool) -> None:
        late = PagedOutQueue(small, is_late=True)
        small.storage.delete(late.queue)
        new = small.queue()
        small.put(new, *ITEMS[::-1])
        if is_committed:
            small.commit(late.queue, new)
        small.faulty_database.release("read_after")
        small.run_threads()
        assert late.filling.is_there
        assert small.take_all_data(new) == ITEMS[::-1]

    def test_puts_during_a_batch_follow_it(self, small: StorageUnderTest) -> None:
        queue = small.queue_with(*ITEMS)
        small.faulty_database.hold("apply")
        (committing,) = small.begin_commit(queue)
        small.run_threads()
        small.put(queue, *ITEMS[::-1])
        small.faulty_database.release("apply")
        small.until(committing)
        assert small.take_all_data(queue) == [*ITEMS, *ITEMS[::-1]]

    def test_read_for_a_failed_queue_is_discarded(self, small: StorageUnderTest) -> None:
        late = PagedOutQueue(small, is_late=True)
        small.commit(late.queue)
        small.put(late.queue, b"lost")
        small.faulty_database.fail_changes_of(b"work")
        with pytest.raises(QueueFailed):
            small.commit(late.queue)
        small.faulty_database.mend()
        small.run_threads()
        assert late.filling.is_there
        new = small.reopened()
        assert new.open_reads == 0
        assert small.data_in(new) == [ITEMS[0], *late.left]

    # Stops.

    def test_close_does_not_wait_for_a_read_and_fires_its_fill(self, small: StorageUnderTest) -> None:
        late = PagedOutQueue(small, is_late=True)
        small.put(late.queue, b"last")
        again = small.restarted()
        assert late.filling.is_there
        assert again.data_in(again.queue()) == [ITEMS[0], *late.left, b"last"]
        small.faulty_database.release("read_after")
        small.run_threads()
        assert again.data_in(again.queue()) == [ITEMS[0], *late.left, b"last"]
