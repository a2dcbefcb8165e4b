"""Settings of the reactor and process beyond the defaults."""

from __future__ import annotations

import resource
import time
from typing import Any, Final

STORAGE_FILE_RESERVE: Final = 512
"""Open files reserved for journals (`kestrel.storage.folder_resources`), or a quarter of a lower limit."""

OTHER_FILE_RESERVE: Final = 64
"""Open files reserved for ports, logs, folders and worker threads."""


def use_monotonic_time(reactor: Any) -> None:
    """Make the reactor's timers use the monotonic clock.

    Twisted's reactor uses the wall clock: when that was set back by 3 s, all calls ran 3 s late. Calls that are already
    scheduled keep their remaining delay.
    """
    waiting = [(call, call.getTime() - reactor.seconds()) for call in reactor.getDelayedCalls()]
    reactor.seconds = time.monotonic
    for call, delay in waiting:
        call.seconds = time.monotonic
        call.reset(max(0.0, delay))


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard limit, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_connections_for_file_limit() -> int:
    """Return how many connections leave enough open files for the storage."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31 - 1
    return max(1, soft - min(STORAGE_FILE_RESERVE, soft // 4) - OTHER_FILE_RESERVE)
