"""What the server needs of the reactor beyond its defaults."""

from __future__ import annotations

import resource
import time
from typing import Any


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
