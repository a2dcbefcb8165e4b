"""Work that may take long is done in slices, between which everybody else has a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, SchedulerStopped
from twisted.python.failure import Failure

SLICE_S: Final = 0.002
"""Then it is the turn of others. One step more may be begun before that is noticed."""


def make_cooperator(clock: IReactorTime) -> Cooperator:
    """Works on iterators in turn, as many steps at a time as a slice has room for: of all of them together."""

    def slice_of_time() -> Callable[[], bool]:
        until = clock.seconds() + SLICE_S
        return lambda: clock.seconds() >= until

    return Cooperator(slice_of_time, lambda step: clock.callLater(0, step))


def ignore_scheduler_stopped(failure: Failure) -> None:
    """The server stops in the middle of such work, which is no fault."""
    failure.trap(SchedulerStopped)
