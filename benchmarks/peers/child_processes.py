"""Child processes that never outlive their parent, however it ends."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import Sequence
from typing import Any, Final

_libc: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1

_HELD_BACK: Final = {signal.SIGINT, signal.SIGTERM}


def _begin() -> None:
    """Ask the kernel to kill this child when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start the command, with options of `Popen`. Its standard input is empty.

    SIGINT and SIGTERM are blocked meanwhile and delivered afterwards. Python drops exceptions that a signal handler
    raises during a fork, so a SIGTERM would be lost.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    process = None
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_begin, **options)
    finally:
        _hear(before, process)
    return process


def _hear(mask: set[signal.Signals | int], process: subprocess.Popen[Any] | None) -> None:
    """Restore the signal mask. If a pending signal raises, kill the process, which the caller does not know yet."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
