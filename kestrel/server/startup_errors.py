"""Errors that prevent the start of a server, and their exit statuses from sysexits.h."""

from __future__ import annotations

from typing import Final

from kestrel.errors import KestrelError

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
