"""Errors that prevent the start of a server, and their exit statuses from sysexits.h."""

from __future__ import annotations

from typing import Final

from kestrel.errors import KestrelError, OwnershipLost, StorageInUse
from kestrel.storage.failures import describe_error

EX_UNAVAILABLE: Final = 69
"""A port cannot be listened on."""
EX_CANNOT_CREATE: Final = 73
"""The queue folder or the log cannot be written, or the storage cannot be opened."""
EX_TRY_AGAIN: Final = 75
"""Another server owns the queue folder or the storage."""
EX_CONFIG: Final = 78
"""The configuration is wrong."""


class CannotServe(KestrelError):
    """The server cannot start until the operator fixes the problem. `status` is the exit status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def storage_failure(error: BaseException) -> CannotServe:
    """Return the error to report when a storage cannot start, or has permanently failed, because of `error`."""
    status = EX_TRY_AGAIN if isinstance(error, StorageInUse | OwnershipLost) else EX_CANNOT_CREATE
    sentence = str(error) if isinstance(error, KestrelError) else describe_error(error)
    return CannotServe(sentence, status)
