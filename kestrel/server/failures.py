"""Why a server cannot start, and with which exit status it says so."""

from __future__ import annotations

from typing import Final

from kestrel.errors import KestrelError

EX_UNAVAILABLE: Final = 69
"""A port cannot be listened on."""
EX_CANNOT_CREATE: Final = 73
"""The queue folder, or the log, cannot be written."""
EX_TRY_AGAIN: Final = 75
"""Another server owns the queue folder."""
EX_CONFIG: Final = 78
"""The configuration is wrong. (All four are those of sysexits.h.)"""


class CannotServe(KestrelError):
    """The server cannot start until its owner has mended something. `status` is the exit status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status
