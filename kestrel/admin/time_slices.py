"""Time slices for long work, so that other work of the reactor runs in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, SchedulerStopped
from twisted.python.failure import Failure

SLICE_S: Final = 0.002
"""Seconds that long work may take in one tick. The last step may exceed them."""


def make_cooperator(clock: IReactorTime) -> Cooperator:
    """Return a cooperator that advances its iterators in turn, for `SLICE_S` seconds per tick in total."""

    def slice_of_time() -> Callable[[], bool]:
        until = clock.seconds() + SLICE_S
        return lambda: clock.seconds() >= until

    return Cooperator(slice_of_time, lambda step: clock.callLater(0, step))


def ignore_scheduler_stopped(failure: Failure) -> None:
    """Handle the failure of work that was interrupted because the server shuts down."""
    failure.trap(SchedulerStopped)
