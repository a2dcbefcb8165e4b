"""A program that a test has started, which is over when the test is, also when it has failed."""

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
"""How long something that must happen may take, on a machine that is busy. Only a failing test waits that long."""

LONG_S: Final = 480.0
"""The same of what takes minutes: less than a test may take in all (`faulthandler_timeout` in setup.cfg)."""

_SETPRIV: Final = shutil.which("setpriv")


def tied(command: Sequence[str | Path]) -> list[str | Path]:
    """The command line that runs it and has it killed when this process is gone, however that ends.

    A test that hangs ends its process without a word to anybody. That Python calls a function in the child would do as
    well, and take a copy of the process for each start, which here is a large one. The system looks at the thread that
    has started it, so only those of the main thread are tied.
    """
    if _SETPRIV is None or threading.current_thread() is not threading.main_thread():
        return [*command]
    return [_SETPRIV, "--pdeathsig", "KILL", "--", *command]


def join(*threads: threading.Thread) -> None:
    """Wait for their ends, and fail where one does not come."""
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"after {PATIENCE_S} s still at work: {thread.name}"


class Child(subprocess.Popen[AnyStr]):
    """As Popen, which waits for ever for a program that does not end or says nothing; and killed when we are gone."""

    def __init__(self, command: Sequence[str | Path], **options: Any) -> None:
        super().__init__(tied(command), **options)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status."""
        return super().wait(PATIENCE_S if timeout is None else timeout)

    def communicate(self, input: AnyStr | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """What it says until it ends."""
        return super().communicate(input, PATIENCE_S if timeout is None else timeout)

    def read_line(self, stream: IO[AnyStr] | None = None) -> AnyStr:
        """The next line of its standard output, or of `stream`; fails where none comes."""
        source = self.stdout if stream is None else stream
        assert source is not None
        with self.killed_when_late():
            line = source.readline()
        assert line, "it has ended, or said no line for too long"
        return line

    @contextmanager
    def killed_when_late(self) -> Iterator[None]:
        """Kill it where what is done inside takes too long: so a read ends."""
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
        """Wait for its end, and fail where it does not come. It is killed then, and where the test has failed."""
        try:
            if error is None:
                self.wait()
        finally:
            self.kill()
            super().wait()
            super().__exit__(kind, error, traceback)
