"""A start of Java that does not fill the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import POLLIN, poll
from threading import Lock, Thread
from typing import Final

MOST_HELD_BYTES: Final = 16 * 1024
"""Of what is said while nobody hears it, the last."""

_READ_BYTES: Final = 64 * 1024


@contextmanager
def capture_stderr() -> Iterator[None]:
    """What this process and what it starts say on standard error is not heard until the context ends.

    What was started may run on: what it says later is heard. If the context ends with an error, the last
    `MOST_HELD_BYTES` that were said in it are shown: they may be the reason.
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
    """Reads a pipe until all who write to it are gone: else they would wait for somebody who does.

    Owns both descriptors.
    """

    def __init__(self, heard: int, standard_error: int) -> None:
        self._heard = heard
        self._standard_error = standard_error
        self._lock = Lock()
        self._held: bytes | None = b""
        """None when it is not held any more."""

    def listen(self) -> None:
        """Return at the end of what is said."""
        said = _poll(self._heard)
        while True:
            said.poll()
            with self._lock:
                if said.poll(0) and not self._hear():
                    os.close(self._heard)
                    os.close(self._standard_error)
                    return

    def pass_on(self, *, is_held_shown: bool) -> None:
        """What is said from now on is shown at once. What was said before is shown first, or never."""
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
        """Whether there was something."""
        data = os.read(self._heard, _READ_BYTES)
        if self._held is None:
            self._show(data)
        else:
            self._held = (self._held + data)[-MOST_HELD_BYTES:]
        return bool(data)

    def _show(self, data: bytes) -> None:
        with suppress(OSError):  # a terminal may be gone, and who writes to the pipe must not wait
            while data:
                data = data[os.write(self._standard_error, data) :]


def _poll(descriptor: int) -> poll:
    """Says whether something was said, or nobody is there any more."""
    asked = poll()
    asked.register(descriptor, POLLIN)
    return asked
