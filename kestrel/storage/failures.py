"""An error of syncs, and functions that describe errors."""

from __future__ import annotations

from twisted.python.failure import Failure
from twisted.python.reflect import safe_str

from kestrel.errors import QueueFailed


class CannotOpen(Exception):
    """No descriptor was free for a sync. So nothing was synced, and no sync has failed."""


def reason_of(error: BaseException) -> str:
    """Return the system's message of an OSError, without paths, or else the message or type of the error."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def error_of(failure: Failure) -> Exception:
    """Return the exception of a failure. If it is not an `Exception`, return a `QueueFailed` instead."""
    value = failure.value
    return value if isinstance(value, Exception) else QueueFailed(str(value) or type(value).__name__)


def describe_error(error: BaseException) -> str:
    """Return type and message of an error that a plugin's code raised, on one line."""
    message = " ".join(safe_str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
