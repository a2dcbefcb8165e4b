"""Open reads by themselves: how long each may be held, and how many are ended in one go."""

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
    """Held reads, a clock, and those that were ended, a list for each turn, behind which `then` is called."""

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


def test_a_read_is_held_until_it_ends_and_its_item_is_told_once() -> None:
    bench = Bench(None)
    bench.open(1, 2)
    assert (1 in bench.open_read_table, 3 in bench.open_read_table, len(bench.open_read_table)) == (True, False, 2)
    item = bench.open_read_table.ended(1)
    assert item is not None and item.xid == 1
    assert bench.open_read_table.ended(1) is None
    assert (1 in bench.open_read_table, len(bench.open_read_table)) == (False, 1)


def test_without_a_timeout_there_is_no_timer() -> None:
    bench = Bench(None)
    bench.open(1)
    assert bench.timers == 0


def test_each_read_is_ended_when_its_own_time_is_over_by_one_timer() -> None:
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


def test_a_read_that_was_finished_in_time_is_not_ended() -> None:
    bench = Bench(5000)
    bench.open(1, 2, 3)
    bench.open_read_table.ended(2)
    bench.clock.advance(5)
    assert bench.ended == [[1, 3]]


def test_of_many_that_are_late_the_newest_are_ended_first_and_a_bounded_number_in_each_turn() -> None:
    bench = Bench(5000)
    xids = list(range(1, 2 * MAX_TIMED_OUT_PER_SLICE + 501))
    bench.open(*xids)
    bench.clock.advance(5)
    assert [len(each) for each in bench.ended] == [MAX_TIMED_OUT_PER_SLICE, MAX_TIMED_OUT_PER_SLICE, 500]
    # Each goes to the head, in front of those before.
    assert [xid for each in reversed(bench.ended) for xid in each] == xids
    assert bench.timers == 0


class TurningClock(Clock):
    """Tells of each turn when it begins."""

    def __init__(self, turn_began: Callable[[], None]) -> None:
        super().__init__()
        self._turn_began = turn_began

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kw: object) -> IDelayedCall:
        def turn() -> None:
            self._turn_began()
            callable(*args, **kw)

        return super().callLater(delay, turn)


@pytest.mark.parametrize("is_leased", [True, False])
def test_of_many_that_are_due_at_once_each_is_found_once_and_a_bounded_number_in_each_turn(
    is_leased: bool,
) -> None:
    left: list[int] = []
    bench = Bench(None if is_leased else 5000, TurningClock(lambda: left.append(len(bench.open_read_table._due))))
    xids = list(range(1, 4 * MAX_TIMED_OUT_PER_SLICE + 1))
    for xid in xids:
        bench.open_read_table.opened(Item(b"x", 0, 0, xid=xid), Told(5000) if is_leased else None)
    bench.clock.advance(5)
    assert [xid for each in reversed(bench.ended) for xid in each] == xids
    assert max(map(len, bench.ended)) <= MAX_TIMED_OUT_PER_SLICE
    left.append(len(bench.open_read_table._due))
    found = [before - after for before, after in pairwise(left)]
    assert (sum(found), left[-1]) == (len(xids), 0)
    assert max(found) <= MAX_TIMED_OUT_PER_SLICE


def test_a_read_that_is_finished_while_later_ones_go_back_does_not_go_back() -> None:
    bench = Bench(5000)
    xids = list(range(1, 2 * MAX_TIMED_OUT_PER_SLICE + 1))
    bench.open(*xids)
    bench.then = lambda: bench.open_read_table.ended(1)
    bench.clock.advance(5)
    assert [xid for each in reversed(bench.ended) for xid in each] == xids[1:]
    assert bench.timers == 0


@pytest.mark.parametrize("timeout_ms", [None, 100_000])
def test_what_has_begun_to_go_back_stays_open_when_the_timeout_is_taken_away_or_longer(timeout_ms: int | None) -> None:
    bench = Bench(5000)
    bench.open(*range(1, 2 * MAX_TIMED_OUT_PER_SLICE + 1))
    bench.then = lambda: bench.open_read_table.use_timeout(timeout_ms)
    bench.clock.advance(5)
    assert [len(each) for each in bench.ended] == [MAX_TIMED_OUT_PER_SLICE]
    assert len(bench.open_read_table) == MAX_TIMED_OUT_PER_SLICE
    bench.clock.advance(95)
    assert len(bench.open_read_table) == (MAX_TIMED_OUT_PER_SLICE if timeout_ms is None else 0)


def test_those_that_are_not_late_are_left_alone_when_many_are() -> None:
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


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "ended_after_s"), [(None, 5000, 3), (5000, 8000, 6), (8000, 1000, 0), (5000, None, None)]
)
def test_another_timeout_holds_for_reads_that_are_open(
    before_ms: int | None, after_ms: int | None, ended_after_s: int | None
) -> None:
    bench = Bench(before_ms)
    bench.open(1)
    bench.clock.advance(2)
    bench.open_read_table.use_timeout(after_ms)
    if ended_after_s is None:
        bench.clock.pump([100] * 3)
        assert (bench.ended, bench.timers) == ([], 0)
        return
    if ended_after_s:
        bench.clock.advance(0)
        bench.clock.advance(ended_after_s - 0.25)
        assert bench.ended == []
        bench.clock.advance(0.25)
    bench.clock.advance(0)
    assert bench.ended == [[1]]


def test_the_same_timeout_again_moves_nothing() -> None:
    bench = Bench(5000)
    bench.open(1)
    bench.clock.advance(4)
    (timer,) = bench.clock.getDelayedCalls()
    bench.open_read_table.use_timeout(5000)
    assert bench.clock.getDelayedCalls() == [timer]
    bench.clock.advance(1)
    assert bench.ended == [[1]]


def test_what_was_cleared_is_never_ended() -> None:
    bench = Bench(5000)
    bench.open(1)
    bench.open_read_table.clear()
    assert (len(bench.open_read_table), bench.timers) == (0, 0)
    bench.clock.advance(10)
    assert bench.ended == []


def test_a_time_that_no_float_holds_is_over_all_the_same() -> None:
    bench = Bench(100)
    for _ in range(1000):
        bench.clock.advance(0.7)
        bench.ended.clear()
        bench.open(1)
        bench.clock.pump([0.05, 0.05, 1e-6])
        assert bench.ended == [[1]]


# Leases: reads that have a time of their own.


class Told:
    """A lease that notes when it is over."""

    def __init__(self, auto_abort_ms: int) -> None:
        self.auto_abort_ms = auto_abort_ms
        self.ends = 0

    def ended(self) -> None:
        self.ends += 1


def lease(bench: Bench, xid: int, auto_abort_ms: int) -> Told:
    told = Told(auto_abort_ms)
    bench.open_read_table.opened(Item(b"x", 0, 0, xid=xid), told)
    return told


def test_a_lease_ends_at_its_own_time_whatever_came_before_it() -> None:
    bench = Bench(None)
    for xid, auto_abort_ms in ((1, 9000), (2, 1000), (3, 5000)):
        lease(bench, xid, auto_abort_ms)
    bench.clock.advance(0.999)
    assert bench.ended == []
    bench.clock.pump([0.001, 4, 4])
    assert bench.ended == [[2], [3], [1]]
    assert bench.timers == 0


def test_of_a_lease_and_the_queues_timeout_the_shorter_counts() -> None:
    bench = Bench(3000)
    lease(bench, 1, 9000)
    lease(bench, 2, 1000)
    bench.clock.pump([1, 2])
    assert bench.ended == [[2], [1]]


def test_a_timeout_shortens_leases_while_it_is_there() -> None:
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


def test_a_lease_is_told_once_of_its_end_whichever_it_is() -> None:
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


def test_reads_that_were_taken_one_after_the_other_come_back_together_and_in_order() -> None:
    bench = Bench(None)
    for xid in range(1, 101):
        lease(bench, xid, 10_000)
        bench.clock.advance(0.005)
    bench.clock.pump([0.001] * 10_100)
    assert bench.ended == [list(range(1, 101))]


def test_a_read_waits_for_later_ones_no_longer_than_a_tenth_of_its_time_and_a_second() -> None:
    bench = Bench(None)
    for xid in range(1, 41):
        lease(bench, xid, 100_000)
        bench.clock.advance(0.1)
    bench.clock.pump([0.01] * 10_000)
    assert [len(each) for each in bench.ended] == [11, 11, 11, 7]
    assert [xid for each in bench.ended for xid in each] == list(range(1, 41))


def test_a_read_that_is_finished_while_it_waits_for_later_ones_does_not_come_back() -> None:
    bench = Bench(None)
    lease(bench, 1, 10_000)
    bench.clock.advance(0.5)
    lease(bench, 2, 10_000)
    bench.clock.advance(9.7)
    assert 1 in bench.open_read_table
    bench.open_read_table.ended(1)
    bench.clock.advance(0.3)
    assert bench.ended == [[2]]


def test_leases_that_were_finished_long_before_their_time_take_no_memory() -> None:
    bench = Bench(None)
    for xid in range(1, 50_001):
        lease(bench, xid, 3_600_000)
        bench.open_read_table.ended(xid)
    assert len(bench.open_read_table._due) <= MAX_TIMED_OUT_PER_SLICE + 1
