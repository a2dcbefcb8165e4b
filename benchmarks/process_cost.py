"""The cost of operations of a server process: wall-clock time and CPU time."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

_ALL_THREADS: Final = 2
"""Linux's number for the clock of a whole process's CPU time (CPUCLOCK_SCHED)."""
_LEAST_CPU_S: Final = 0.001
"""The minimum CPU time in seconds. Shorter times may be reported as zero."""


class Moment(NamedTuple):
    """A moment, in seconds of wall-clock time and of the process's CPU time."""

    clock_s: float
    cpu_s: float


class Watch:
    """The clocks of one process."""

    def __init__(self, pid: int) -> None:
        self._cpu_clock = (~pid << 3) | _ALL_THREADS

    def now(self) -> Moment:
        """Return the present moment."""
        return Moment(time.perf_counter(), time.clock_gettime(self._cpu_clock))


class Cost:
    """The summed cost of operations."""

    def __init__(self) -> None:
        self._operations = 0
        self._clock_s = self._cpu_s = 0.0

    def add(self, operations: int, began: Moment, ended: Moment) -> None:
        """Add the cost of that many operations between two moments."""
        self._operations += operations
        self._clock_s += ended.clock_s - began.clock_s
        self._cpu_s += ended.cpu_s - began.cpu_s

    @property
    def per_s(self) -> float:
        """Operations per second."""
        return self._operations / self._clock_s

    @property
    def per_cpu_s(self) -> float:
        """Operations per second of CPU time."""
        return self._operations / max(self._cpu_s, _LEAST_CPU_S)
