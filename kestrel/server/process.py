"""The process of a server: its clock, limits, user and exit status."""

from __future__ import annotations

import atexit
import ctypes
import os
import pwd
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from twisted.python.util import runAsEffectiveUser

from kestrel.config.units import MIB

STORAGE_FILE_RESERVE: Final = 512
"""Open files reserved for journals (`kestrel.storage.folder_resources`), or a quarter of a lower limit."""

OTHER_FILE_RESERVE: Final = 64
"""Open files reserved for ports, logs, folders and worker threads."""

MAX_FREED_BYTES: Final = 32 * MIB
"""Freed memory that the process keeps for the next items."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3)."""


def keep_freed_memory() -> None:
    """Make the C library keep up to `MAX_FREED_BYTES` of freed memory, unless the environment sets its parameters.

    By default glibc returns a large block to the system at once, and the system clears each page of the next block.
    Other C libraries are left as they are.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, MAX_FREED_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAX_FREED_BYTES // 2)


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


_Made = TypeVar("_Made")


def call_as_user(uid: int | None, gid: int | None, make: Callable[[], _Made]) -> _Made:
    """Call `make` with the rights of the user and group that the server will run as, and return its result.

    So the files belong to that user, and root does not write through a link to a file that the user may not write. A
    `uid` of None keeps root, and a `gid` of None means the user's group. Without root's privileges, `make` is called
    directly: twistd itself then reports that it cannot change the user.
    """
    if (uid is None and gid is None) or os.geteuid() != 0:
        return make()
    user = 0 if uid is None else uid
    group = pwd.getpwuid(user).pw_gid if gid is None else gid
    made: _Made = runAsEffectiveUser(user, group, make)
    return made


class ExitStatus:
    """The exit status of this process.

    Create it early: functions registered with `atexit` before it are skipped if a status is set.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._exit)

    def exit_with(self, status: int) -> None:
        """Set the status with which the process exits. It is used at the very end, after the pidfile is removed."""
        self._status = status

    def _exit(self) -> None:
        """Flush the output and exit with the status. Only `os._exit` can change the status this late."""
        if self._status is not None:
            for stream in (sys.stdout, sys.stderr):
                if stream is None:  # it was closed when the process started
                    continue
                with suppress(OSError, ValueError):  # its reader is gone
                    stream.flush()
            os._exit(self._status)
