"""Time slices for long work, so that other work of the reactor runs in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, LoopingCall, SchedulerStopped
from twisted.logger import Logger

log = Logger(__name__)

SLICE_S: Final = 0.002
"""Seconds that long work may take in one tick. The last step may exceed them."""


def make_cooperator(clock: IReactorTime) -> Cooperator:
    """Return a cooperator that advances its iterators in turn, for `SLICE_S` seconds per tick in total."""

    def slice_of_time() -> Callable[[], bool]:
        until = clock.seconds() + SLICE_S
        return lambda: clock.seconds() >= until

    return Cooperator(slice_of_time, lambda step: clock.callLater(0, step))


class SlicedLoop:
    """Work in steps that begins every `interval_s` seconds. A failure is logged with `message` and ends the loop.

    `steps` is called with the number of intervals since its last call.
    """

    def __init__(
        self, clock: IReactorTime, cooperator: Cooperator, steps: Callable[[int], Iterator[object]], message: str
    ) -> None:
        self._cooperator = cooperator
        self._steps = steps
        self._message = message
        self._loop = LoopingCall.withCount(self._begin)
        self._loop.clock = clock

    def start(self, interval_s: float) -> None:
        """Start the loop. The first work begins at once."""
        self._loop.start(interval_s).addErrback(lambda failure: log.failure(self._message, failure))

    def stop(self) -> None:
        """Start no further work."""
        if self._loop.running:
            self._loop.stop()

    def _begin(self, intervals: int) -> Deferred[object]:
        done = self._cooperator.cooperate(self._steps(intervals)).whenDone()
        return done.addErrback(lambda failure: failure.trap(SchedulerStopped))  # the server shuts down
