"""How a tool ends: with an exit status and a sentence, never with a traceback of what is no fault of ours."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

from kestrel.errors import KestrelError

EX_OK: Final = 0
EX_FOUND: Final = 1
"""Damage was found, or something could not be read or done."""
EX_USAGE: Final = 2
"""As argparse's own."""
EX_SERVER: Final = 3
"""A server could not be reached, or could not or would not do it."""
EX_INTERRUPTED: Final = 130
"""As a shell's, for what SIGINT ended."""


class ToolFailed(KestrelError):
    """The tool cannot go on. The text is a sentence with the way out, `status` the exit status."""

    def __init__(self, sentence: str, status: int = EX_FOUND) -> None:
        super().__init__(sentence)
        self.status = status


class OutputFailed(ToolFailed):
    """Standard output cannot be written."""


def print_error(tool: str, sentence: str) -> None:
    """Tell the person at the terminal."""
    sys.stderr.write(f"{tool}: {sentence}\n")
    sys.stderr.flush()


def output_failure(error: OSError) -> Exception:
    """What to raise where standard output cannot be written: `OutputFailed`, or BrokenPipeError if its reader left."""
    if isinstance(error, BrokenPipeError):
        return error
    return OutputFailed(f"standard output cannot be written: {explain_os_error(error)}")


def run(tool: str, work: Callable[[], int]) -> int:
    """Do the work, of which reading the command line is the first part, and return its exit status.

    A reader of the output that left (`| head`) ends it quietly.
    """
    if sys.stderr is None:  # closed: nobody is told, and no file or connection gets its number
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
    """The same. What argparse has to say, and ends the process behind, is written before that end, or fails here."""
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
    """What is still buffered would fail again when the interpreter ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_OS_ERROR_ADVICE: Final = {
    "EMFILE": "allow more open files (ulimit -n)",
    "ENOSPC": "make room on the disk and run this again",
    "EDQUOT": "make room on the disk and run this again",
    "EROFS": "mount it for writing and run this again",
    "EACCES": "run this as the user that the server runs as",
    "EPERM": "run this as the user that the server runs as",
    "EIO": "copy the folder to a good disk with a tool that goes on after errors, and look at the copy",
}


def explain_os_error(error: OSError) -> str:
    """The system's words for an error, the file if it is known, and the way out."""
    name = error.filename
    path = os.fsencode(name).decode("utf-8", "backslashreplace") + ": " if isinstance(name, str | bytes) else ""
    way_out = _OS_ERROR_ADVICE.get(errno.errorcode.get(error.errno or 0, ""))
    return f"{path}{error.strerror or error}" + (f"; {way_out}" if way_out else "")
