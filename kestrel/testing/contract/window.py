"""Queues larger than their memory limit: fills, operations during a fill, and fills that fail or come late."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from kestrel.errors import QueueFailed, StorageError
from kestrel.storage.interfaces import IQueueStorage
from kestrel.testing.contract.backend import Backend, DeferredOutcome, StorageUnderTest, started_storage
from kestrel.testing.contract.requirements import requires

ITEMS = [b"%03d" % number * 20 for number in range(60)]
MEMORY_BYTES = 300


class WindowedBackend(Backend):
    """The base class of tests with queues that keep five items in memory."""

    small = started_storage("small", max_memory_size_bytes=MEMORY_BYTES)
    """A storage whose queues hold 300 bytes in memory."""


def page_out_head(small: StorageUnderTest) -> tuple[IQueueStorage, int, list[bytes], Deferred[None]]:
    """Return a queue whose head is paged out, the xid of an open read, the other items' data, and a pending fill."""
    queue = small.stored_queue(*ITEMS)
    left = ITEMS.copy()
    first = small.open(queue)
    assert first.data == left.pop(0)
    while len(left) > 5:
        item = queue.take(False)
        if item is not None:
            assert item.data == left.pop(0)
            continue
        filling = queue.fill()
        if filling is not None:
            return queue, first.xid, left, filling
    raise AssertionError("has_window is set, but the backend keeps all items in memory")


@requires("has_window")
class WindowTests(WindowedBackend):
    """Successful fills."""

    @pytest.mark.parametrize("is_committed", [True, False])
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

    def test_fill_loads_the_head(self, small: StorageUnderTest) -> None:
        queue, _, left, filling = page_out_head(small)
        assert (queue.items, queue.open_reads) == (len(left), 1)
        small.wait_for_fill(queue, filling)
        assert small.take_all_data(queue) == left

    def test_queue_can_be_cleared_during_a_fill(self, small: StorageUnderTest) -> None:
        queue, xid, _, filling = page_out_head(small)
        queue.clear()
        assert (queue.items, queue.bytes, queue.peek(), queue.take(False)) == (0, 0, None, None)
        small.wait_for_fill(queue, filling)
        assert (queue.items, queue.mem_items, queue.open_reads) == (0, 0, 1)
        assert small.take_all_data(queue) == []
        queue.put_back([xid], False)
        assert small.take_all_data(queue) == ITEMS[:1]

    def test_queue_can_be_cleared_and_filled_during_a_fill(self, small: StorageUnderTest) -> None:
        queue, _, _, filling = page_out_head(small)
        queue.clear()
        small.put(queue, b"new", *ITEMS)
        small.wait_for_fill(queue, filling)
        assert small.take_all_data(queue) == [b"new", *ITEMS]

    def test_items_can_be_put_during_a_fill(self, small: StorageUnderTest) -> None:
        queue, _, left, filling = page_out_head(small)
        small.put(queue, b"new")
        assert queue.items == len(left) + 1
        small.wait_for_fill(queue, filling)
        assert small.take_all_data(queue) == [*left, b"new"]

    def test_put_back_during_a_fill_becomes_the_head(self, small: StorageUnderTest) -> None:
        queue, xid, left, filling = page_out_head(small)
        queue.put_back([xid], False)
        head = queue.take(True)
        assert head is not None
        assert head.data == ITEMS[0]
        queue.put_back([head.xid], False)
        small.wait_for_fill(queue, filling)
        assert small.take_all_data(queue) == [ITEMS[0], *left]

    def test_open_read_can_be_confirmed_during_a_fill(self, small: StorageUnderTest) -> None:
        queue, xid, left, filling = page_out_head(small)
        assert queue.confirm([xid]) == 1
        small.wait_for_fill(queue, filling)
        assert small.take_all_data(queue) == left

    def test_queue_can_be_committed_during_a_fill(self, small: StorageUnderTest) -> None:
        queue, xid, left, filling = page_out_head(small)
        queue.confirm([xid])
        small.store(queue, b"new")
        small.wait_for_fill(queue, filling)
        assert small.take_all_data(queue) == [*left, b"new"]

    def test_deletion_during_a_fill_discards_the_read(self, small: StorageUnderTest) -> None:
        queue, _, _, filling = page_out_head(small)
        outcome = DeferredOutcome(filling)
        small.storage.delete(queue)
        new = small.queue()
        small.put(new, b"new")
        small.commit(queue, new)
        small.run_threads()
        assert outcome.is_there
        assert small.take_all_data(new) == [b"new"]

    def test_storage_can_be_closed_during_a_fill(self, small: StorageUnderTest) -> None:
        _, _, _, filling = page_out_head(small)
        outcome = DeferredOutcome(filling)
        small.close()
        small.run_threads()
        assert outcome.is_there


@requires("has_window", "commit_faults")
class WindowFaultTests(WindowedBackend):
    """Failed fills."""

    def test_failed_fill_changes_nothing_and_can_be_repeated(self, small: StorageUnderTest) -> None:
        queue, xid, left, filling = page_out_head(small)
        small.fail_reads()
        outcome = DeferredOutcome(filling)
        small.run_threads()
        assert outcome.has_failed
        assert (queue.failure, queue.items, queue.bytes) == (None, len(left), sum(map(len, left)))
        assert (queue.open_reads, queue.is_open(xid), queue.peek(), queue.take(False)) == (1, True, None, None)
        filling_again = queue.fill()
        assert filling_again is not None
        with pytest.raises(StorageError):
            small.wait(filling_again)
        small.mend()
        assert small.take_all_data(queue) == left


def hold_fill(small: StorageUnderTest) -> tuple[IQueueStorage, int, list[bytes], Deferred[None]]:
    """Call `page_out_head`, and hold back the answer of the database's read for the fill. Return the same values."""
    small.faulty_database.hold("read_after")
    queue, xid, left, filling = page_out_head(small)
    small.run_threads()
    assert small.faulty_database.held("read_after") == 1
    return queue, xid, left, filling


def release_fill(small: StorageUnderTest, filling: Deferred[None]) -> None:
    """Release the answer, and check that the fill fires."""
    outcome = DeferredOutcome(filling)
    assert [outcome.is_there] == [False], "fill fired before the answer came"
    small.faulty_database.release("read_after")
    small.run_threads()
    assert outcome.is_there, "the answer came, but fill has not fired"
    outcome.result()


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
        queue, xid, left, filling = page_out_head(small)
        outcome = DeferredOutcome(filling)
        small.fail_reads()
        small.put(queue, b"new")
        queue.confirm([xid])
        small.commit(queue)
        assert outcome.has_failed
        assert small.killed().data_in() == [*left, b"new"]

    # Answers that come late.

    def test_read_before_a_clear_is_discarded(self, small: StorageUnderTest) -> None:
        queue, xid, _, filling = hold_fill(small)
        queue.clear()
        small.commit(queue)
        assert (queue.items, queue.mem_items, queue.peek()) == (0, 0, None)
        release_fill(small, filling)
        assert (queue.items, queue.bytes, queue.mem_items, queue.mem_bytes, queue.peek()) == (0, 0, 0, 0, None)
        queue.put_back([xid], False)
        assert small.take_all_data(queue) == ITEMS[:1]

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_read_before_a_clear_is_not_mixed_with_later_puts(
        self, small: StorageUnderTest, is_committed: bool
    ) -> None:
        queue, _, _, filling = hold_fill(small)
        queue.clear()
        small.put(queue, b"new", *ITEMS)
        if is_committed:
            small.commit(queue)
        release_fill(small, filling)
        assert small.take_all_data(queue) == [b"new", *ITEMS]

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_read_before_a_deletion_is_discarded(self, small: StorageUnderTest, is_committed: bool) -> None:
        old, _, _, filling = hold_fill(small)
        outcome = DeferredOutcome(filling)
        small.storage.delete(old)
        new = small.queue()
        small.put(new, *ITEMS[::-1])
        if is_committed:
            small.commit(old, new)
        small.faulty_database.release("read_after")
        small.run_threads()
        assert outcome.is_there
        assert small.take_all_data(new) == ITEMS[::-1]

    def test_puts_during_a_read_follow_the_read_items(self, small: StorageUnderTest) -> None:
        queue, _, left, filling = hold_fill(small)
        small.store(queue, b"committed", *ITEMS)
        small.put(queue, b"not committed")
        release_fill(small, filling)
        assert small.take_all_data(queue) == [*left, b"committed", *ITEMS, b"not committed"]

    def test_puts_during_a_batch_follow_it(self, small: StorageUnderTest) -> None:
        queue = small.queue_with(*ITEMS)
        small.faulty_database.hold("apply")
        (committing,) = small.begin_commit(queue)
        small.run_threads()
        small.put(queue, *ITEMS[::-1])
        small.faulty_database.release("apply")
        small.until(committing)
        assert small.take_all_data(queue) == [*ITEMS, *ITEMS[::-1]]

    def test_put_back_during_a_read_precedes_the_read_items(self, small: StorageUnderTest) -> None:
        queue, xid, left, filling = hold_fill(small)
        queue.put_back([xid], True)
        small.commit(queue)
        release_fill(small, filling)
        assert small.take_all_data(queue) == [ITEMS[0], *left]

    def test_item_confirmed_during_a_read_is_not_delivered_again(self, small: StorageUnderTest) -> None:
        queue, xid, left, filling = hold_fill(small)
        queue.confirm([xid])
        small.commit(queue)
        release_fill(small, filling)
        assert small.take_all_data(queue) == left

    def test_read_for_a_failed_queue_is_discarded(self, small: StorageUnderTest) -> None:
        old, _, left, filling = hold_fill(small)
        outcome = DeferredOutcome(filling)
        small.commit(old)
        small.put(old, b"lost")
        small.faulty_database.fail_changes_of(b"work")
        with pytest.raises(QueueFailed):
            small.commit(old)
        small.faulty_database.mend()
        small.run_threads()
        assert outcome.is_there
        new = small.reopened()
        assert new.open_reads == 0
        assert small.data_in(new) == [ITEMS[0], *left]

    # Stops.

    def test_close_does_not_wait_for_a_read_and_fires_its_fill(self, small: StorageUnderTest) -> None:
        queue, _, left, filling = hold_fill(small)
        outcome = DeferredOutcome(filling)
        small.put(queue, b"last")
        again = small.restarted()
        assert outcome.is_there
        assert again.data_in(again.queue()) == [ITEMS[0], *left, b"last"]
        small.faulty_database.release("read_after")
        small.run_threads()
        assert again.data_in(again.queue()) == [ITEMS[0], *left, b"last"]
