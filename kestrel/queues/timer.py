"""A timer that is started and stopped again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

CLOCK_TOLERANCE_S: Final = 1e-6
"""Clocks count in floating point: a timer that is due must find what it was set for."""


class Timer:
    """Calls `due` once, some time after it was started, unless it is stopped before."""

    __slots__ = ("_call", "_clock", "_due")

    def __init__(self, clock: IReactorTime, due: Callable[[], object]) -> None:
        self._clock = clock
        self._due = due
        self._call: IDelayedCall | None = None

    @property
    def is_running(self) -> bool:
        """Whether it will call."""
        return self._call is not None

    def start(self, seconds: float) -> None:
        """Call after that time; an earlier start does not count any more."""
        self.stop()
        self._call = self._clock.callLater(seconds, self._is_due)

    def stop(self) -> None:
        """Do not call."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _is_due(self) -> None:
        self._call = None
        self._due()
