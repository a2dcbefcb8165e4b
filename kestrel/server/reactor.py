"""What the server needs of the reactor beyond its defaults."""

from __future__ import annotations

import resource
import time
from typing import Any, Final

STORAGE_FILE_RESERVE: Final = 512
"""What journals may have open (`kestrel.storage.open_files`), or a quarter of a lower limit."""

OTHER_FILE_RESERVE: Final = 64
"""Ports, logs, folders, and what threads read."""


def use_monotonic_time(reactor: Any) -> None:
    """Let the reactor's timers go by a clock that nobody sets.

    Twisted's reactor tells time by the wall clock, and after a step of -3 s everything due ran 3 s late. Calls
    that are due already keep their distance.
    """
    waiting = [(call, call.getTime() - reactor.seconds()) for call in reactor.getDelayedCalls()]
    reactor.seconds = time.monotonic
    for call, delay in waiting:
        call.seconds = time.monotonic
        call.reset(max(0.0, delay))


def raise_file_limit() -> int:
    """Allow this process as many open files as it may allow itself. Returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_connections_for_file_limit() -> int:
    """How many connections leave the storage the open files that it needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31 - 1
    return max(1, soft - min(STORAGE_FILE_RESERVE, soft // 4) - OTHER_FILE_RESERVE)
