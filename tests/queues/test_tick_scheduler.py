"""TickScheduler: which work runs in a tick, and which continues in the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from kestrel.queues.tick_scheduler import BACKGROUND_BUDGET_S, TICK_BUDGET_S, TickScheduler
from kestrel.storage.barrier import Barrier


class Bench:
    """A TickScheduler on a reactor whose ticks the test runs. `now_s` changes only when the test sets it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._soon: deque[Callable[[], None]] = deque()
        self.barrier = Barrier(self._soon.append)
        self.scheduler = TickScheduler(self.barrier, self._soon.append, lambda: self.now_s)
        self.done: list[str] = []

    def tick(self) -> list[str]:
        """Run the pending calls and return what was done."""
        before = len(self.done)
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        return self.done[before:]

    def later(self, name: str, takes_s: float = 0.0) -> None:
        """Schedule work that takes this long and, like a session, first asks for time."""

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
        """Return what each tick did, without idle ticks."""
        ticks = []
        while self._soon:
            ticks.append(self.tick())
            assert len(ticks) < 1000
        return [each for each in ticks if each]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.scheduler.open()
    return bench


def test_nothing_runs_before_the_queues_are_loaded() -> None:
    bench = Bench()
    assert not bench.scheduler.has_time()
    bench.later("early")
    assert bench.until_idle() == []
    bench.scheduler.open()
    assert bench.scheduler.has_time()
    assert bench.until_idle() == [["early"]]


def test_tick_starts_no_work_after_its_time(bench: Bench) -> None:
    assert bench.scheduler.has_time()
    bench.now_s += TICK_BUDGET_S * 0.9
    assert bench.scheduler.has_time()
    bench.now_s += TICK_BUDGET_S * 0.2
    assert not bench.scheduler.has_time()


def test_tick_without_replies_ends(bench: Bench) -> None:
    """A client that sends half a line, or starts to wait, leaves no work for the end of the tick."""
    assert bench.scheduler.has_time()
    bench.tick()
    bench.now_s += 60
    assert bench.scheduler.has_time()


def test_work_without_replies_does_not_delay_the_rest(bench: Bench) -> None:
    for name in "abc":
        bench.later(name, takes_s=TICK_BUDGET_S)
    bench.later("the rest")
    assert bench.until_idle() == [["a"], ["b"], ["c"], ["the rest"]]
    assert bench.scheduler.has_time()


def test_work_left_by_a_tick_continues_in_order(bench: Bench) -> None:
    for name in "abcde":
        bench.later(name, takes_s=TICK_BUDGET_S / 2)
    assert bench.until_idle() == [["a", "b"], ["c", "d"], ["e"]]


def test_each_tick_runs_at_least_one_however_slow(bench: Bench) -> None:
    for name in "abc":
        bench.later(name, takes_s=TICK_BUDGET_S * 100)
    assert bench.until_idle() == [["a"], ["b"], ["c"]]


def test_work_that_continues_goes_behind_waiting_work(bench: Bench) -> None:
    def again() -> None:
        bench.later("first, again", takes_s=TICK_BUDGET_S)

    bench.later("first", takes_s=TICK_BUDGET_S)
    bench.scheduler.continue_later(again)
    bench.later("second", takes_s=TICK_BUDGET_S)
    assert bench.until_idle() == [["first"], ["second"], ["first, again"]]


def test_used_up_tick_keeps_order_of_waiting_work(bench: Bench) -> None:
    for name in "abc":
        bench.later(name)
    assert bench.scheduler.has_time()
    bench.now_s += TICK_BUDGET_S * 2
    assert [name for each in bench.until_idle() for name in each] == ["a", "b", "c"]


def test_work_that_continues_runs_once_per_tick(bench: Bench) -> None:
    def greedy() -> None:
        bench.done.append("greedy")
        bench.scheduler.continue_later(greedy)

    bench.scheduler.continue_later(greedy)
    assert bench.tick() == ["greedy"]


def test_work_that_raises_stops_no_other(bench: Bench) -> None:
    bench.scheduler.continue_later(lambda: 1 / 0)
    bench.later("a", takes_s=TICK_BUDGET_S)
    bench.later("b")
    assert bench.until_idle() == [["a"], ["b"]]


def test_nothing_is_scheduled_without_work(bench: Bench) -> None:
    bench.later("a")
    bench.until_idle()
    assert bench.tick() == []
    bench.later("b")
    assert bench.until_idle() == [["b"]]


def test_background_work_runs_after_other_work_in_the_time_left(bench: Bench) -> None:
    for name in "abcd":
        bench.scheduler.run_in_background(bench.step(name, BACKGROUND_BUDGET_S * 0.8))
    bench.later("work", TICK_BUDGET_S * 0.5)
    assert bench.until_idle() == [["work", "a", "b"], ["c", "d"]]


def test_busy_ticks_run_one_step_of_background_work(bench: Bench) -> None:
    for name in "ab":
        bench.scheduler.run_in_background(bench.step(name, TICK_BUDGET_S * 0.4))
        bench.later(name.upper(), TICK_BUDGET_S * 2)
    assert bench.until_idle() == [["A", "a"], ["B", "b"]]


def test_failed_background_work_stops_no_other(bench: Bench) -> None:
    def failing() -> None:
        raise ZeroDivisionError

    bench.scheduler.run_in_background(failing)
    bench.scheduler.run_in_background(bench.step("next"))
    assert bench.until_idle() == [["next"]]
