"""SIGTERM handling of the process that runs a stream reader for Spark's driver."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Final

_STATUS: Final = 128 + signal.SIGTERM
"""Exit status that a shell reports for a process ended by SIGTERM."""


def exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, unless this process already handles it or this is not the main thread.

    Spark stops a source with SIGTERM, which by default would end the process before `stop` is called.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def ignore_sigterm() -> None:
    """Ignore SIGTERM during the shutdown if `exit_on_sigterm` handles it. Spark may send several signals."""
    if signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(_STATUS)
