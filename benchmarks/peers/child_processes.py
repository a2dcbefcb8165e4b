"""Processes that do not outlive the one that has started them, however that ends."""

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
    """In the child: be killed when the parent is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start that, with the options of `Popen`. Its standard input is empty.

    A signal that comes meanwhile is heard after it: Python swallows what a handler raises in the middle of a fork, and
    a SIGTERM would be no end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    process = None
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_begin, **options)
    finally:
        _hear(before, process)
    return process


def _hear(mask: set[signal.Signals | int], process: subprocess.Popen[Any] | None) -> None:
    """Let signals through again; where one ends us nobody will know of the process."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
