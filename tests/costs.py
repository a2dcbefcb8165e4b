"""Measurements of the processor time and memory of work, for both builds."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

Work = Callable[[], object]

MAX_RATIO = 8
"""Allowed ratio of the times for a large and a small input, whose sizes differ by a factor of hundreds."""

ATTEMPTS = 5
MEMORY_ATTEMPTS = 3


def cost_s(prepare: Callable[[], Work]) -> float:
    """Return the minimum processor time of the work in some attempts, each with new preparation."""
    costs = []
    for _ in range(ATTEMPTS):
        work = prepare()
        began = time.thread_time()
        work()
        costs.append(time.thread_time() - began)
    return min(costs)


def costs_about_the_same(small: Callable[[], Work], large: Callable[[], Work]) -> bool:
    """Return whether work with a large input takes about as long as with a small one."""
    return cost_s(large) <= MAX_RATIO * cost_s(small)


def peak_bytes(prepare: Callable[[], Work]) -> int:
    """Return the minimum peak memory of the work in some attempts, because other threads sometimes allocate too."""
    peaks = []
    for _ in range(MEMORY_ATTEMPTS):
        work = prepare()
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
