"""Child processes of tests, which end with the test even if it fails."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, AnyStr, Final

PATIENCE_S: Final = 60.0
"""Time limit for an expected event on a busy machine. Only a failing test waits that long."""

LONG_S: Final = 480.0
"""Time limit for work that takes minutes, below the limit of a test (`faulthandler_timeout` in setup.cfg)."""

_SETPRIV: Final = shutil.which("setpriv")


def killed_with_parent(command: Sequence[str | Path]) -> list[str | Path]:
    """Return a command line that runs the command and has it killed when this process ends.

    A test that hangs ends this process without cleanup. A `preexec_fn` would also work, but would copy this large
    process for each start. The kernel watches the starting thread, so this is only done in the main thread.
    """
    if _SETPRIV is None or threading.current_thread() is not threading.main_thread():
        return [*command]
    return [_SETPRIV, "--pdeathsig", "KILL", "--", *command]


def join(*threads: threading.Thread) -> None:
    """Wait for the threads, and fail if one does not end."""
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"thread {thread.name} has not ended after {PATIENCE_S} s"


class Child(subprocess.Popen[AnyStr]):
    """A Popen with a time limit for every wait and read, killed when this process ends."""

    def __init__(self, command: Sequence[str | Path], **options: Any) -> None:
        super().__init__(killed_with_parent(command), **options)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Return its exit status."""
        return super().wait(PATIENCE_S if timeout is None else timeout)

    def communicate(self, input: AnyStr | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Send `input`, and return the output until the process ends."""
        return super().communicate(input, PATIENCE_S if timeout is None else timeout)

    def read_line(self, stream: IO[AnyStr] | None = None) -> AnyStr:
        """Return the next line of standard output, or of `stream`. Fail if there is none in time."""
        source = self.stdout if stream is None else stream
        assert source is not None
        with self.killed_when_late():
            line = source.readline()
        assert line, "the process ended, or printed no line in time"
        return line

    @contextmanager
    def killed_when_late(self) -> Iterator[None]:
        """Kill the process if the block takes too long, so that a read in it ends."""
        killing = threading.Timer(PATIENCE_S, self.kill)
        killing.daemon = True
        killing.start()
        try:
            yield
        finally:
            killing.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the end of the process. Kill it if it does not end, or if the test has failed."""
        try:
            if error is None:
                self.wait()
        finally:
            self.kill()
            super().wait()
            super().__exit__(kind, error, traceback)
