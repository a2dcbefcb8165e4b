"""A timer that can be started and stopped repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

CLOCK_TOLERANCE_S: Final = 1e-6
"""Tolerance for rounding: a timer that fires must find its own deadline reached."""


class Timer:
    """A timer that calls `due` once, some time after each start, unless it is stopped."""

    __slots__ = ("_call", "_clock", "_due")

    def __init__(self, clock: IReactorTime, due: Callable[[], object]) -> None:
        self._clock = clock
        self._due = due
        self._call: IDelayedCall | None = None

    @property
    def is_running(self) -> bool:
        """Whether the timer will call `due`."""
        return self._call is not None

    def start(self, seconds: float) -> None:
        """Call `due` after `seconds`. An earlier start is canceled."""
        self.stop()
        self._call = self._clock.callLater(seconds, self._is_due)

    def stop(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _is_due(self) -> None:
        self._call = None
        self._due()
