"""What work costs, of the processor or of memory: the same question to the compiled build and to the pure one."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

Work = Callable[[], object]

TOO_MUCH = 8
"""Work that must not grow with something may take so many times as long where that is hundreds of times as large."""

TRIES = 5
TRIES_OF_MEMORY = 3


def cost_s(prepare: Callable[[], Work]) -> float:
    """The least that the work cost in some tries, each of them prepared anew."""
    costs = []
    for _ in range(TRIES):
        work = prepare()
        began = time.thread_time()
        work()
        costs.append(time.thread_time() - began)
    return min(costs)


def costs_about_the_same(small: Callable[[], Work], large: Callable[[], Work]) -> bool:
    """Whether the work beside much costs what it costs beside little."""
    return cost_s(large) <= TOO_MUCH * cost_s(small)


def peak_bytes(prepare: Callable[[], Work]) -> int:
    """The least memory that the work had at a time in some tries: threads of others take some as well, now and then."""
    peaks = []
    for _ in range(TRIES_OF_MEMORY):
        work = prepare()
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
