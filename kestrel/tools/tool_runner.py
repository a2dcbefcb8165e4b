"""Run of a tool: its clock, and its exit with a status and a one-line message instead of a traceback."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from kestrel.errors import KestrelError

EX_OK: Final = 0
EX_FOUND: Final = 1
"""Damage was found, or something could not be read or done."""
EX_USAGE: Final = 2
"""The command line is invalid; argparse uses this status too."""
EX_SERVER: Final = 3
"""A server could not be reached, failed, or refused the request."""
EX_INTERRUPTED: Final = 130
"""SIGINT ended the tool; shells use this status for it."""


class Clock(NamedTuple):
    """A monotonic clock and a sleep function, both in seconds."""

    seconds: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


class ToolFailed(KestrelError):
    """An error that ends the tool. The text says what failed and what to do; `status` is the exit status."""

    def __init__(self, sentence: str, status: int = EX_FOUND) -> None:
        super().__init__(sentence)
        self.status = status


class OutputFailed(ToolFailed):
    """Standard output cannot be written."""


def print_error(tool: str, sentence: str) -> None:
    """Write a line to standard error, after the tool's name."""
    sys.stderr.write(f"{tool}: {sentence}\n")
    sys.stderr.flush()


def output_failure(error: OSError) -> Exception:
    """Return the error to raise after a failed write to standard output.

    It is `OutputFailed`, or `error` itself if that is a BrokenPipeError.
    """
    if isinstance(error, BrokenPipeError):
        return error
    return OutputFailed(f"standard output cannot be written: {explain_os_error(error)}")


def run(tool: str, work: Callable[[], int]) -> int:
    """Run `work`, which also reads the command line, and return the exit status.

    If the reader of the output closes the pipe (`| head`), the tool ends with status 0 and no message.
    """
    if sys.stderr is None:  # closed: discard messages, and keep its descriptor from being used by a file
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        return _with_output(work)
    except OutputFailed as failed:
        print_error(tool, str(failed))
        _forget_output()
        return failed.status
    except ToolFailed as failed:
        print_error(tool, str(failed))
        return failed.status
    except BrokenPipeError:
        _forget_output()
        return EX_OK
    except KeyboardInterrupt:
        print_error(tool, "interrupted")
        return EX_INTERRUPTED
    except OSError as error:
        print_error(tool, explain_os_error(error))
        return EX_FOUND


def _with_output(work: Callable[[], int]) -> int:
    """Run `work`. If argparse exits, flush its output first, so that a failed write is reported."""
    try:
        return work()
    except SystemExit:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            raise output_failure(error) from None
        raise


def _forget_output() -> None:
    """Discard buffered output, which would fail again when the interpreter exits."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_OS_ERROR_ADVICE: Final = {
    "EMFILE": "allow more open files (ulimit -n)",
    "ENOSPC": "make room on the disk and run this again",
    "EDQUOT": "make room on the disk and run this again",
    "EROFS": "mount it for writing and run this again",
    "EACCES": "run this as the user that the server runs as",
    "EPERM": "run this as the user that the server runs as",
    "EIO": "copy the folder to a good disk with a tool that continues after errors, and check the copy",
}


def explain_os_error(error: OSError) -> str:
    """Return the system's message for an error, with the file if it is known, and advice."""
    name = error.filename
    path = os.fsencode(name).decode("utf-8", "backslashreplace") + ": " if isinstance(name, str | bytes) else ""
    way_out = _OS_ERROR_ADVICE.get(errno.errorcode.get(error.errno or 0, ""))
    return f"{path}{error.strerror or error}" + (f"; {way_out}" if way_out else "")


class Output:
    """Standard output. Raises BrokenPipeError if the reader has closed the pipe, `OutputFailed` on other errors."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise OutputFailed("standard output is closed: send it somewhere")
        self._stream = sys.stdout.buffer
        self.is_terminal = sys.stdout.isatty()

    def line(self, text: str) -> None:
        self._write(text.encode("utf-8", "surrogateescape") + b"\n")

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    def object(self, value: dict[str, Any]) -> None:
        """Write a JSON object on one line."""
        self._write(json.dumps(value).encode("ascii") + b"\n")

    def raw(self, data: bytes) -> None:
        """Write bytes unchanged, followed by a newline."""
        self._write(data)
        self._write(b"\n")

    def exactly(self, data: bytes) -> None:
        """Write bytes unchanged, without a newline."""
        self._write(data)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise output_failure(error) from None

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except OSError as error:
            raise output_failure(error) from None
