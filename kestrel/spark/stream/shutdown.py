"""How the process ends in which Spark's driver has a source of a stream."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Final

_STATUS: Final = 128 + signal.SIGTERM
"""As a shell has it of a process that SIGTERM has ended."""


def exit_on_sigterm() -> None:
    """Have a SIGTERM end this process as `sys.exit` does, if nobody else has said how it is to end.

    Spark stops a source by sending it that signal, which would end it before its `stop` is called.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def ignore_sigterm() -> None:
    """The end has begun: let no SIGTERM cut it short, if it is ours. Spark may send several."""
    if signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(_STATUS)
