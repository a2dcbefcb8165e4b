"""A timer of one millisecond that measures how long the reactor delays it."""

from __future__ import annotations

import time
from array import array
from typing import Final, NamedTuple

from twisted.internet.interfaces import IDelayedCall, IReactorTime

BEAT_S: Final = 0.001


class Beats(NamedTuple):
    """The beats of a phase, one value in milliseconds per beat."""

    late: array[float]
    """The delay of the next beat, for any reason: code, the interpreter lock, the system, other processes."""
    busy: array[float]
    """The CPU time of the reactor's thread between two beats."""


class Heartbeat:
    """A timer that beats from `start` to `stop`. Each beat is recorded in the phase that was set last."""

    def __init__(self, reactor: IReactorTime) -> None:
        self._reactor = reactor
        self._call: IDelayedCall | None = None
        self._beats = Beats(array("d"), array("d"))
        self._beat_at = self._busy_at = 0.0
        self.phases: dict[str, Beats] = {}

    def phase(self, name: str) -> None:
        """Record the following beats under that name."""
        self._beats = self.phases.setdefault(name, Beats(array("d"), array("d")))

    def start(self) -> None:
        """Start the timer."""
        self._next()

    def stop(self) -> None:
        """Stop the timer."""
        if self._call is not None:
            self._call.cancel()

    def _next(self) -> None:
        self._beat_at, self._busy_at = time.perf_counter(), time.thread_time()
        self._call = self._reactor.callLater(BEAT_S, self._beat)

    def _beat(self) -> None:
        beats = self._beats
        beats.late.append(max(0.0, time.perf_counter() - self._beat_at - BEAT_S) * 1000)
        beats.busy.append((time.thread_time() - self._busy_at) * 1000)
        self._next()
