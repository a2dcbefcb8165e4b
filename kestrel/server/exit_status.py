"""An exit status for a process whose reactor has been stopped: twistd ends with 0 then, whatever has happened."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress


class ExitStatus:
    """How this process will end. Make it early: what is registered with `atexit` before it is left out if it is set."""

    def __init__(self) -> None:
        self._status: int | None = None
        atexit.register(self._exit)

    def exit_with(self, status: int) -> None:
        """End with that status when all else is done, the pidfile removed and the log written."""
        self._status = status

    def _exit(self) -> None:
        """Nothing but the end of the process changes its status here, so what else would follow is done before."""
        if self._status is not None:
            for stream in (sys.stdout, sys.stderr):
                if stream is None:  # it was closed when the process began
                    continue
                with suppress(OSError, ValueError):  # nobody reads it any more
                    stream.flush()
            os._exit(self._status)
