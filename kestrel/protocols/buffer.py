"""Received bytes that are not parsed yet."""

from __future__ import annotations

from typing import Final

_LF: Final = b"\n"


class ReceiveBuffer:
    """Bytes in, lines and blocks out; each byte is looked at once, however small the pieces.

    While whole requests arrive, the transport's own bytes object is sliced and nothing is copied; the
    bytearray is used only for requests that arrive in pieces.
    """

    __slots__ = ("_data", "_position", "_scanned")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._position = 0
        self._scanned = 0

    def __len__(self) -> int:
        """How many bytes are held."""
        return len(self._data) - self._position

    def receive(self, data: bytes) -> None:
        """Append what the network brought."""
        if self._position == len(self._data):
            self._data = data
            self._position = self._scanned = 0
            return
        if isinstance(self._data, bytes):
            self._data = bytearray(memoryview(self._data)[self._position :])
        else:
            del self._data[: self._position]
        self._scanned = max(0, self._scanned - self._position)
        self._position = 0
        self._data += data

    def take_line(self) -> bytes | None:
        """The next line without its line feed, or None while it is not complete."""
        data = self._data
        end = data.find(_LF, max(self._scanned, self._position))
        if end < 0:
            self._scanned = len(data)
            return None
        line = bytes(data[self._position : end])
        self._used_up_to(end + 1)
        return line

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes, or None while they are not all there."""
        end = self._position + size
        if end > len(self._data):
            return None
        block = bytes(self._data[self._position : end])
        self._used_up_to(end)
        return block

    def _used_up_to(self, position: int) -> None:
        if position == len(self._data):
            self.clear()  # an idle connection keeps nothing
        else:
            self._position = self._scanned = position

    def clear(self) -> None:
        """Forget everything."""
        self._data = b""
        self._position = self._scanned = 0
