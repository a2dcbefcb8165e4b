"""An exit status for a process whose reactor was stopped, since twistd always exits with 0 then."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress


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
