"""What operations cost a server process: time by the clock, and the processor's time that it took."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

_ALL_THREADS: Final = 2
"""Linux's number for a clock of the processor's time of a whole process (CPUCLOCK_SCHED)."""
_LEAST_CPU_S: Final = 0.001
"""Less may be counted as nothing."""


class Moment(NamedTuple):
    """When something was, in seconds by the clock and of the server's processor time."""

    clock_s: float
    cpu_s: float


class Watch:
    """Tells the time of one process."""

    def __init__(self, pid: int) -> None:
        self._cpu_clock = (~pid << 3) | _ALL_THREADS

    def now(self) -> Moment:
        """This moment."""
        return Moment(time.perf_counter(), time.clock_gettime(self._cpu_clock))


class Cost:
    """What operations took, all together."""

    def __init__(self) -> None:
        self._operations = 0
        self._clock_s = self._cpu_s = 0.0

    def add(self, operations: int, began: Moment, ended: Moment) -> None:
        """So many more, between these moments."""
        self._operations += operations
        self._clock_s += ended.clock_s - began.clock_s
        self._cpu_s += ended.cpu_s - began.cpu_s

    @property
    def per_s(self) -> float:
        """Operations a second."""
        return self._operations / self._clock_s

    @property
    def per_cpu_s(self) -> float:
        """Operations a second of the server's processor time."""
        return self._operations / max(self._cpu_s, _LEAST_CPU_S)
