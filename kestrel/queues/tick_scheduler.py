"""Fair turns: how long a tick may go on, and who goes on in the next one.

Without a bound, many connections with full pipelines make one tick as long as all their work; nobody's reply
leaves before its end.
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
"""After so much work a tick begins nothing new."""

BACKGROUND_BUDGET_S: Final = TICK_BUDGET_S / 4
"""A tick begins no further step of background work after this much of it. Requests that arrive meanwhile wait less."""


class TickScheduler:
    """Says who may work in this tick, and lets the rest go on in the next.

    Nobody works before `open`, which is called when the queues are loaded: connections that came earlier wait.
    """

    def __init__(self, barrier: Barrier, schedule: Schedule, seconds: Callable[[], float]) -> None:
        self.barrier = barrier
        self._schedule = schedule
        self.seconds = seconds
        self._tick_ends_at: float | None = None
        self.checked_at_s = 0.0
        """What the clock said when somebody last asked whether to work."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._background: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._is_open = False

    def open(self) -> None:
        """Let everyone begin."""
        self._is_open = True
        self._schedule_next()

    def has_time(self) -> bool:
        """Whether this tick still begins something new."""
        if not self._is_open:
            return False
        self.checked_at_s = self.seconds()
        if self._tick_ends_at is None:
            self._tick_ends_at = self.checked_at_s + TICK_BUDGET_S
            self.barrier.at_end_of_tick(self._tick_ended)
            return True
        return self.checked_at_s < self._tick_ends_at

    def exceeds_tick(self, began: float) -> bool:
        """Whether a turn that began then has used up a whole tick by itself."""
        return self.seconds() - began > TICK_BUDGET_S

    def _tick_ended(self) -> None:
        self._tick_ends_at = None

    def continue_later(self, work: Callable[[], None]) -> None:
        """Call `work` in the next tick, after those who asked before."""
        self._waiting.append(work)
        self._schedule_next()

    def run_in_background(self, step: Callable[[], None]) -> None:
        """Call `step` when no `continue_later` work is due and the tick has time left.

        Each tick runs at least one step, so that a busy server finishes background work too. A step should take much
        less than a tick.
        """
        self._background.append(step)
        self._schedule_next()

    def for_each(
        self, things: Sequence[_Thing], work: Callable[[_Thing], object], at_once: int
    ) -> Deferred[None]:
        """Do that with each of these, in turns, the first of them now. Fires when all is done, or with what `work`
        raises, which ends it.

        A turn does so many at most, and begins no further one when its time is over.
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
        began = self.seconds()
        while self._background:
            self._run(self._background.popleft())
            if self.seconds() - began > BACKGROUND_BUDGET_S or not self.has_time():
                break
        self._schedule_next()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # a failure must not stop the work of others
            log.failure("A turn failed")
