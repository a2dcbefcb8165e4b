"""Errors of backends, and errors in words."""

from __future__ import annotations

from twisted.python.failure import Failure
from twisted.python.reflect import safe_str

from kestrel.errors import QueueFailed


class CannotOpen(Exception):
    """There was no descriptor for a sync, so nothing was synced and nothing has failed."""


def reason_of(error: BaseException) -> str:
    """The system's words for an error of the disk, without paths."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def error_of(failure: Failure) -> Exception:
    """The exception of a failure."""
    return failure.value if isinstance(failure.value, Exception) else QueueFailed(str(failure.value))


def describe_error(error: BaseException) -> str:
    """The type and the message of what somebody else's code raised, on one line."""
    message = " ".join(safe_str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
