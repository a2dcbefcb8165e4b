"""Errors of the disk, in words."""

from __future__ import annotations

from twisted.python.failure import Failure

from kestrel.errors import QueueFailed


def reason_of(error: BaseException) -> str:
    """The system's words for an error, without paths."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def error_of(failure: Failure) -> Exception:
    """The exception of a failure."""
    return failure.value if isinstance(failure.value, Exception) else QueueFailed(str(failure.value))
