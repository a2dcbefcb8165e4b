"""How long the reactor keeps others waiting: a timer of a millisecond, and how late it comes."""

from __future__ import annotations

import time
from array import array
from typing import Final, NamedTuple

from twisted.internet.interfaces import IDelayedCall, IReactorTime

BEAT_S: Final = 0.001


class Beats(NamedTuple):
    """What a phase was like, beat by beat, in milliseconds."""

    late: array[float]
    """How much later than it should the next beat came, whatever the reason: code, the interpreter's lock, the system,
    other processes."""
    busy: array[float]
    """The processor's time that the reactor's thread used between two beats: what its code took, and nothing else."""


class Heartbeat:
    """Beats from `start` to `stop`; each beat belongs to the phase that `phase` began last."""

    def __init__(self, reactor: IReactorTime) -> None:
        self._reactor = reactor
        self._call: IDelayedCall | None = None
        self._beats = Beats(array("d"), array("d"))
        self._beat_at = self._busy_at = 0.0
        self.phases: dict[str, Beats] = {}

    def phase(self, name: str) -> None:
        """What comes from now on has that name."""
        self._beats = self.phases.setdefault(name, Beats(array("d"), array("d")))

    def start(self) -> None:
        """Begin to beat."""
        self._next()

    def stop(self) -> None:
        """Beat no more."""
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
