"""The fair scheduling of work over ticks.

Without a bound, many connections with full pipelines would make one tick as long as all their work. All replies would
wait for its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.storage.barrier import Barrier, Schedule

log = Logger(__name__)

_Thing = TypeVar("_Thing")

TICK_BUDGET_S: Final = 0.002
"""Time after which a tick begins no new work."""

BACKGROUND_BUDGET_S: Final = TICK_BUDGET_S / 4
"""Time after which a tick begins no further background work, so that requests that arrive meanwhile wait less."""


class TickScheduler:
    """A scheduler that limits the work in a tick and continues the rest in the next.

    Before `open`, which is called when the queues are loaded, no work begins.
    """

    def __init__(self, barrier: Barrier, schedule: Schedule, seconds: Callable[[], float]) -> None:
        self.barrier = barrier
        self._schedule = schedule
        self.seconds = seconds
        self._tick = -1
        """Number of the barrier's tick that `_ends_at_s` belongs to."""
        self._ends_at_s = 0.0
        self.checked_at_s = 0.0
        """The clock's value at the last `has_time`."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._background: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        self._schedule_next()

    def has_time(self) -> bool:
        """Return True if this tick may begin new work."""
        if not self._is_open:
            return False
        now_s = self.checked_at_s = self.seconds()
        if self._tick != self.barrier.ticks:
            self._tick = self.barrier.ticks
            self._ends_at_s = now_s + TICK_BUDGET_S
            self.barrier.schedule_end()
        return now_s < self._ends_at_s

    def exceeds_tick(self, began: float) -> bool:
        """Return True if a slice that began at `began` (of `seconds`) has used the time of a whole tick."""
        return self.seconds() - began > TICK_BUDGET_S

    def continue_later(self, work: Callable[[], None]) -> None:
        """Call `work` in the next tick that has time for it, after work that was added before.

        An error of `work` is only logged.
        """
        self._waiting.append(work)
        self._schedule_next()

    def run_in_background(self, step: Callable[[], None]) -> None:
        """Call `step` when no `continue_later` work is due and the tick has time left.

        Each tick runs at least one step, so that a busy server finishes background work too. A step should take much
        less than a tick.
        """
        self._background.append(step)
        self._schedule_next()

    def for_each(self, things: Sequence[_Thing], work: Callable[[_Thing], object], at_once: int) -> Deferred[None]:
        """Call `work` with each of `things`, in slices, the first slice now.

        Fires when done. An error ends it and makes the Deferred fail.

        A slice handles at most `at_once` things, and ends when its time is over.
        """
        done: Deferred[None] = Deferred()
        self._do_some(things, 0, work, at_once, done)
        return done

    def _do_some(
        self,
        things: Sequence[_Thing],
        first: int,
        work: Callable[[_Thing], object],
        at_once: int,
        done: Deferred[None],
    ) -> None:
        began = self.seconds()
        place = first
        try:
            for thing in things[first : first + at_once]:
                work(thing)
                place += 1
                if self.exceeds_tick(began):
                    break
        except Exception:
            done.errback()
            return
        if place == len(things):
            done.callback(None)
        else:
            self.continue_later(partial(self._do_some, things, place, work, at_once, done))

    def _schedule_next(self) -> None:
        if (self._waiting or self._background) and self._is_open and not self._is_scheduled:
            self._is_scheduled = True
            self._schedule(self._next_tick)

    def _next_tick(self) -> None:
        self._is_scheduled = False
        for _ in range(len(self._waiting)):
            if not self.has_time():  # the tick's time is used up: the remaining work keeps its order
                break
            self._run(self._waiting.popleft())
        if self._background:
            self._run_background()
        self._schedule_next()

    def _run_background(self) -> None:
        began = self.seconds()
        while self._background:
            self._run(self._background.popleft())
            if not self.has_time() or self.checked_at_s - began > BACKGROUND_BUDGET_S:
                break

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # a failure must not stop the work of others
            log.failure("Scheduled work failed")
