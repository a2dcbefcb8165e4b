"""The table of open reads: how long each read may stay open, and how many end in one time slice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock

from kestrel.item import Item
from kestrel.queues.open_reads import MAX_TIMED_OUT_PER_SLICE, QueueOpenReads


class Bench:
    """A table of open reads with a clock.

    `ended` has a list of reads for each time slice; `then` is called after each.
    """

    def __init__(self, timeout_ms: int | None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.ended: list[list[int]] = []
        self.then: Callable[[], object] = lambda: None
        self.open_read_table = QueueOpenReads(self.clock, self._timed_out)
        self.open_read_table.use_timeout(timeout_ms)

    def _timed_out(self, xids: list[int]) -> None:
        self.ended.append(xids)
        for xid in xids:
            self.open_read_table.ended(xid)
        self.then()

    def open(self, *xids: int) -> None:
        for xid in xids:
            self.open_read_table.opened(Item(b"x", 0, 0, xid=xid))

    @property
    def timers(self) -> int:
        return len(self.clock.getDelayedCalls())


def test_read_is_open_until_it_ends_once() -> None:
    bench = Bench(None)
    bench.open(1, 2)
    assert (1 in bench.open_read_table, 3 in bench.open_read_table, len(bench.open_read_table)) == (True, False, 2)
    item = bench.open_read_table.ended(1)
    assert item is not None and item.xid == 1
    assert bench.open_read_table.ended(1) is None
    assert (1 in bench.open_read_table, len(bench.open_read_table)) == (False, 1)


def test_no_timer_without_a_timeout() -> None:
    bench = Bench(None)
    bench.open(1)
    assert bench.timers == 0


def test_one_timer_ends_each_read_at_its_time() -> None:
    bench = Bench(5000)
    for xid in (1, 2, 3):
        bench.open(xid, 10 + xid)
        bench.clock.advance(1)
    assert bench.timers == 1
    bench.clock.advance(1.75)
    assert bench.ended == []
    bench.clock.pump([0.25, 1, 1])
    assert bench.ended == [[1, 11], [2, 12], [3, 13]]
    assert bench.timers == 0


class ObservedClock(Clock):
    """A clock that reports the start of each call."""

    def __init__(self, turn_began: Callable[[], None]) -> None:
        super().__init__()
        self._turn_began = turn_began

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kw: object) -> IDelayedCall:
        def turn() -> None:
            self._turn_began()
            callable(*args, **kw)

        return super().callLater(delay, turn)


@pytest.mark.parametrize("is_leased", [True, False])
def test_many_due_reads_are_found_once_in_bounded_slices(is_leased: bool) -> None:
    left: list[int] = []
    bench = Bench(None if is_leased else 5000, ObservedClock(lambda: left.append(len(bench.open_read_table._due))))
    xids = list(range(1, 4 * MAX_TIMED_OUT_PER_SLICE + 1))
    for xid in xids:
        bench.open_read_table.opened(Item(b"x", 0, 0, xid=xid), RecordingLease(5000) if is_leased else None)
    bench.clock.advance(5)
    assert [xid for each in reversed(bench.ended) for xid in each] == xids
    assert max(map(len, bench.ended)) <= MAX_TIMED_OUT_PER_SLICE
    left.append(len(bench.open_read_table._due))
    found = [before - after for before, after in pairwise(left)]
    assert (sum(found), left[-1]) == (len(xids), 0)
    assert max(found) <= MAX_TIMED_OUT_PER_SLICE


def test_read_finished_while_later_ones_return_does_not_return() -> None:
    bench = Bench(5000)
    xids = list(range(1, 2 * MAX_TIMED_OUT_PER_SLICE + 1))
    bench.open(*xids)
    bench.then = lambda: bench.open_read_table.ended(1)
    bench.clock.advance(5)
    assert [xid for each in reversed(bench.ended) for xid in each] == xids[1:]
    assert bench.timers == 0


@pytest.mark.parametrize("timeout_ms", [None, 100_000])
def test_removed_or_longer_timeout_keeps_remaining_reads_open(timeout_ms: int | None) -> None:
    bench = Bench(5000)
    bench.open(*range(1, 2 * MAX_TIMED_OUT_PER_SLICE + 1))
    bench.then = lambda: bench.open_read_table.use_timeout(timeout_ms)
    bench.clock.advance(5)
    assert [len(each) for each in bench.ended] == [MAX_TIMED_OUT_PER_SLICE]
    assert len(bench.open_read_table) == MAX_TIMED_OUT_PER_SLICE
    bench.clock.advance(95)
    assert len(bench.open_read_table) == (MAX_TIMED_OUT_PER_SLICE if timeout_ms is None else 0)


def test_reads_in_time_stay_open_when_many_time_out() -> None:
    bench = Bench(5000)
    bench.open(*range(1, MAX_TIMED_OUT_PER_SLICE + 2))
    bench.clock.advance(3)
    bench.open(1_000_000)
    bench.clock.advance(2)
    assert len(bench.open_read_table) == 1
    bench.clock.advance(2.75)
    assert 1_000_000 in bench.open_read_table
    bench.clock.advance(0.25)
    assert bench.ended[-1] == [1_000_000]


def test_equal_timeout_keeps_the_timer() -> None:
    bench = Bench(5000)
    bench.open(1)
    bench.clock.advance(4)
    (timer,) = bench.clock.getDelayedCalls()
    bench.open_read_table.use_timeout(5000)
    assert bench.clock.getDelayedCalls() == [timer]
    bench.clock.advance(1)
    assert bench.ended == [[1]]


def test_cleared_reads_do_not_time_out() -> None:
    bench = Bench(5000)
    bench.open(1)
    bench.open_read_table.clear()
    assert (len(bench.open_read_table), bench.timers) == (0, 0)
    bench.clock.advance(10)
    assert bench.ended == []


def test_timeout_ends_despite_float_rounding() -> None:
    bench = Bench(100)
    for _ in range(1000):
        bench.clock.advance(0.7)
        bench.ended.clear()
        bench.open(1)
        bench.clock.pump([0.05, 0.05, 1e-6])
        assert bench.ended == [[1]]


# Leases: reads with a time of their own.


class RecordingLease:
    """A lease that counts its ends."""

    def __init__(self, auto_abort_ms: int) -> None:
        self.auto_abort_ms = auto_abort_ms
        self.ends = 0

    def ended(self) -> None:
        self.ends += 1


def lease(bench: Bench, xid: int, auto_abort_ms: int) -> RecordingLease:
    recorded = RecordingLease(auto_abort_ms)
    bench.open_read_table.opened(Item(b"x", 0, 0, xid=xid), recorded)
    return recorded


def test_lease_ends_at_its_own_time() -> None:
    bench = Bench(None)
    for xid, auto_abort_ms in ((1, 9000), (2, 1000), (3, 5000)):
        lease(bench, xid, auto_abort_ms)
    bench.clock.advance(0.999)
    assert bench.ended == []
    bench.clock.pump([0.001, 4, 4])
    assert bench.ended == [[2], [3], [1]]
    assert bench.timers == 0


def test_timeout_shortens_leases_while_it_is_set() -> None:
    bench = Bench(None)
    lease(bench, 1, 9000)
    bench.clock.advance(1)
    bench.open_read_table.use_timeout(2000)
    lease(bench, 2, 4000)
    bench.clock.advance(1)
    assert bench.ended == [[1]]
    bench.open_read_table.use_timeout(None)
    bench.clock.pump([1, 1])
    assert bench.ended == [[1]]
    bench.clock.advance(1)
    assert bench.ended == [[1], [2]]


def test_lease_is_notified_once_of_its_end() -> None:
    bench = Bench(None)
    leases = [lease(bench, xid, 1000) for xid in (1, 2, 3)]
    bench.open_read_table.ended(1)
    bench.clock.advance(1)
    bench.open_read_table.clear()
    assert [each.ends for each in leases] == [1, 1, 1]
    leases = [lease(bench, xid, 1000) for xid in (4, 5)]
    bench.open_read_table.clear()
    assert [each.ends for each in leases] == [1, 1]
    assert bench.timers == 0


def test_read_finished_while_waiting_for_later_ones_does_not_return() -> None:
    bench = Bench(None)
    lease(bench, 1, 10_000)
    bench.clock.advance(0.5)
    lease(bench, 2, 10_000)
    bench.clock.advance(9.7)
    assert 1 in bench.open_read_table
    bench.open_read_table.ended(1)
    bench.clock.advance(0.3)
    assert bench.ended == [[2]]


def test_leases_finished_early_take_no_memory() -> None:
    bench = Bench(None)
    for xid in range(1, 50_001):
        lease(bench, xid, 3_600_000)
        bench.open_read_table.ended(xid)
    assert len(bench.open_read_table._due) <= MAX_TIMED_OUT_PER_SLICE + 1
