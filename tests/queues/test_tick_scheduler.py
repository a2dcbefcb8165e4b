"""TickScheduler: who may work in a tick, and who goes on in the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from kestrel.queues.tick_scheduler import BACKGROUND_BUDGET_S, TICK_BUDGET_S, TickScheduler
from kestrel.storage.barrier import Barrier


class Ticking:
    """TickScheduler on a reactor of which a test runs each tick; `now_s` moves only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._soon: deque[Callable[[], None]] = deque()
        self.barrier = Barrier(self._soon.append)
        self.scheduler = TickScheduler(self.barrier, self._soon.append, lambda: self.now_s)
        self.done: list[str] = []

    def tick(self) -> list[str]:
        """Run what is due, and return what was done."""
        before = len(self.done)
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        return self.done[before:]

    def later(self, name: str, takes_s: float = 0.0) -> None:
        """Work that takes so long, and asks whether it may, as sessions do."""

        def work() -> None:
            if not self.scheduler.has_time():
                self.scheduler.continue_later(work)
                return
            self.done.append(name)
            self.now_s += takes_s

        self.scheduler.continue_later(work)

    def step(self, name: str, takes_s: float = 0.0) -> Callable[[], None]:
        """Return background work that takes this long."""

        def step() -> None:
            self.done.append(name)
            self.now_s += takes_s

        return step

    def until_idle(self) -> list[list[str]]:
        """What each tick did, without those that did nothing."""
        ticks = []
        while self._soon:
            ticks.append(self.tick())
            assert len(ticks) < 1000
        return [each for each in ticks if each]


@pytest.fixture
def ticking() -> Ticking:
    ticking = Ticking()
    ticking.scheduler.open()
    return ticking


def test_nobody_works_before_the_queues_are_loaded() -> None:
    ticking = Ticking()
    assert not ticking.scheduler.has_time()
    ticking.later("early")
    assert ticking.until_idle() == []
    ticking.scheduler.open()
    assert ticking.scheduler.has_time()
    assert ticking.until_idle() == [["early"]]


def test_a_tick_begins_nothing_new_after_its_time(ticking: Ticking) -> None:
    assert ticking.scheduler.has_time()
    ticking.now_s += TICK_BUDGET_S * 0.9
    assert ticking.scheduler.has_time()
    ticking.now_s += TICK_BUDGET_S * 0.2
    assert not ticking.scheduler.has_time()


def test_a_tick_is_about_two_milliseconds() -> None:
    assert 0.001 <= TICK_BUDGET_S <= 0.003


def test_the_next_tick_has_all_its_time_again(ticking: Ticking) -> None:
    assert ticking.scheduler.has_time()
    ticking.now_s += TICK_BUDGET_S * 5
    assert not ticking.scheduler.has_time()
    ticking.tick()
    assert ticking.scheduler.has_time()
    ticking.now_s += TICK_BUDGET_S * 0.9
    assert ticking.scheduler.has_time()


def test_a_tick_that_recorded_and_said_nothing_ends_as_well(ticking: Ticking) -> None:
    """A client that sends half a line, or begins to wait, leaves nothing for the end of the tick."""
    assert ticking.scheduler.has_time()
    ticking.tick()
    ticking.now_s += 60
    assert ticking.scheduler.has_time()


def test_work_that_says_nothing_does_not_hold_up_the_rest(ticking: Ticking) -> None:
    for name in "abc":
        ticking.later(name, takes_s=TICK_BUDGET_S)
    ticking.later("the rest")
    assert ticking.until_idle() == [["a"], ["b"], ["c"], ["the rest"]]
    assert ticking.scheduler.has_time()


def test_work_for_later_is_done_in_the_next_tick_and_in_order(ticking: Ticking) -> None:
    for name in "abc":
        ticking.later(name)
    assert ticking.done == []
    assert ticking.tick() == ["a", "b", "c"]


def test_what_a_tick_has_no_time_for_goes_on_in_the_next_in_order(ticking: Ticking) -> None:
    for name in "abcde":
        ticking.later(name, takes_s=TICK_BUDGET_S / 2)
    assert ticking.until_idle() == [["a", "b"], ["c", "d"], ["e"]]


def test_each_tick_serves_at_least_one_however_slow_the_work(ticking: Ticking) -> None:
    for name in "abc":
        ticking.later(name, takes_s=TICK_BUDGET_S * 100)
    assert ticking.until_idle() == [["a"], ["b"], ["c"]]


def test_who_asks_again_stands_behind_those_who_asked_before(ticking: Ticking) -> None:
    def again() -> None:
        ticking.later("first, again", takes_s=TICK_BUDGET_S)

    ticking.later("first", takes_s=TICK_BUDGET_S)
    ticking.scheduler.continue_later(again)
    ticking.later("second", takes_s=TICK_BUDGET_S)
    assert ticking.until_idle() == [["first"], ["second"], ["first, again"]]


def test_a_tick_that_others_have_used_up_costs_nobody_the_place_in_line(ticking: Ticking) -> None:
    for name in "abc":
        ticking.later(name)
    assert ticking.scheduler.has_time()
    ticking.now_s += TICK_BUDGET_S * 2
    assert [name for each in ticking.until_idle() for name in each] == ["a", "b", "c"]


def test_who_asks_again_in_a_tick_is_not_served_twice_in_it(ticking: Ticking) -> None:
    def greedy() -> None:
        ticking.done.append("greedy")
        ticking.scheduler.continue_later(greedy)

    ticking.scheduler.continue_later(greedy)
    assert ticking.tick() == ["greedy"]


def test_a_turn_that_raises_keeps_nobody_from_theirs(ticking: Ticking) -> None:
    ticking.scheduler.continue_later(lambda: 1 / 0)
    ticking.later("a", takes_s=TICK_BUDGET_S)
    ticking.later("b")
    assert ticking.until_idle() == [["a"], ["b"]]


def test_nothing_is_scheduled_when_nobody_waits(ticking: Ticking) -> None:
    ticking.later("a")
    ticking.until_idle()
    assert ticking.tick() == []
    ticking.later("b")
    assert ticking.until_idle() == [["b"]]


def test_background_work_runs_after_other_work_in_the_time_left(ticking: Ticking) -> None:
    for name in "abcd":
        ticking.scheduler.run_in_background(ticking.step(name, BACKGROUND_BUDGET_S * 0.8))
    ticking.later("work", TICK_BUDGET_S * 0.5)
    assert ticking.until_idle() == [["work", "a", "b"], ["c", "d"]]


def test_busy_ticks_run_one_step_of_background_work(ticking: Ticking) -> None:
    for name in "ab":
        ticking.scheduler.run_in_background(ticking.step(name, TICK_BUDGET_S * 0.4))
        ticking.later(name.upper(), TICK_BUDGET_S * 2)
    assert ticking.until_idle() == [["A", "a"], ["B", "b"]]


def test_failed_background_work_stops_no_other(ticking: Ticking) -> None:
    def failing() -> None:
        raise ZeroDivisionError

    ticking.scheduler.run_in_background(failing)
    ticking.scheduler.run_in_background(ticking.step("next"))
    assert ticking.until_idle() == [["next"]]
