"""Why a server cannot start, and with which exit status it says so."""

from __future__ import annotations

from typing import Final

from kestrel.errors import KestrelError, OwnershipLost, StorageInUse
from kestrel.storage.failures import fault

EX_UNAVAILABLE: Final = 69
"""A port cannot be listened on."""
EX_CANNOT_CREATE: Final = 73
"""The queue folder, or the log, cannot be written; the storage cannot be had."""
EX_TRY_AGAIN: Final = 75
"""Another server owns the queue folder, or what else the storage keeps its queues in."""
EX_CONFIG: Final = 78
"""The configuration is wrong. (All four are those of sysexits.h.)"""


class CannotServe(KestrelError):
    """The server cannot start until its owner has mended something. `status` is the exit status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def storage_failure(error: BaseException) -> CannotServe:
    """What the owner is told when a storage does not start, or can never be used again, for that reason."""
    status = EX_TRY_AGAIN if isinstance(error, StorageInUse | OwnershipLost) else EX_CANNOT_CREATE
    sentence = str(error) if isinstance(error, KestrelError) else fault(error)
    return CannotServe(sentence, status)
