"""Capture of standard error while Java starts, to keep its messages off the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import POLLIN, poll
from threading import Lock, Thread
from typing import Final

MOST_HELD_BYTES: Final = 16 * 1024
"""Limit of the captured bytes; older bytes are dropped."""

_READ_BYTES: Final = 64 * 1024


@contextmanager
def capture_stderr() -> Iterator[None]:
    """Capture the standard error of this process and of its new children until the context ends.

    Children may run longer; their later output is shown at once. If the context ends with an error, the last
    `MOST_HELD_BYTES` of the captured output are shown, because they may contain the reason.
    """
    sys.stderr.flush()
    heard, said = os.pipe()
    ear = _StderrReader(heard, os.dup(2))
    standard_error = os.dup(2)
    os.dup2(said, 2)
    os.close(said)
    Thread(target=ear.listen, name="kestrel standard error", daemon=True).start()
    try:
        yield
    except Exception:
        ear.pass_on(is_held_shown=True)
        raise
    finally:
        sys.stderr.flush()
        ear.pass_on(is_held_shown=False)
        os.dup2(standard_error, 2)
        os.close(standard_error)


class _StderrReader:
    """A reader of the pipe that replaces standard error, which drains it until all writers have closed it.

    Without it a writer would block on a full pipe. The reader owns and closes both descriptors.
    """

    def __init__(self, heard: int, standard_error: int) -> None:
        self._heard = heard
        self._standard_error = standard_error
        self._lock = Lock()
        self._held: bytes | None = b""
        """Captured bytes, or None once output is passed on."""

    def listen(self) -> None:
        """Read until all writers have closed the pipe."""
        said = _poll(self._heard)
        while True:
            said.poll()
            with self._lock:
                if said.poll(0) and not self._hear():
                    os.close(self._heard)
                    os.close(self._standard_error)
                    return

    def pass_on(self, *, is_held_shown: bool) -> None:
        """Pass on all later output at once; show or drop the captured output first."""
        said = _poll(self._heard)
        with self._lock:
            if self._held is None:
                return
            while said.poll(0) and self._hear():
                pass
            held, self._held = self._held, None
            if is_held_shown:
                self._show(held)

    def _hear(self) -> bool:
        """Read once and return False at the end of the pipe."""
        data = os.read(self._heard, _READ_BYTES)
        if self._held is None:
            self._show(data)
        else:
            self._held = (self._held + data)[-MOST_HELD_BYTES:]
        return bool(data)

    def _show(self, data: bytes) -> None:
        with suppress(OSError):  # the terminal may be gone, but writers must not block
            while data:
                data = data[os.write(self._standard_error, data) :]


def _poll(descriptor: int) -> poll:
    """Return a poll object that reports data or end of file on the descriptor."""
    asked = poll()
    asked.register(descriptor, POLLIN)
    return asked
