"""Received bytes that are not parsed yet."""

from __future__ import annotations

import re
from typing import Final

_LF: Final = b"\n"
_CRLF: Final = b"\r\n"
_EMPTY_LINE: Final = re.compile(rb"^\r?\n", re.MULTILINE)


class NoLineEnd(Exception):
    """Behind a block there is something else than the line end that closes it."""


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
        end = data.find(_LF, self._scanned)
        if end < 0:
            self._scanned = len(data)
            return None
        line = data[self._position : end]
        self._used_up_to(end + 1)
        return line if isinstance(line, bytes) else bytes(line)

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes, or None while they are not all there."""
        end = self._position + size
        if end > len(self._data):
            return None
        block = self._data[self._position : end]
        self._used_up_to(end)
        return block if isinstance(block, bytes) else bytes(block)

    def take_block(self, size: int) -> bytes | None:
        """The next `size` bytes, and the CRLF behind them is dropped; or None while they are not all there.

        Raises `NoLineEnd` if there is something else in the CRLF's place.
        """
        data = self._data
        begin = self._position
        end = begin + size
        if end + len(_CRLF) > len(data):
            return None
        if not data.startswith(_CRLF, end):
            raise NoLineEnd
        block = data[begin:end]
        self._used_up_to(end + len(_CRLF))
        return block if isinstance(block, bytes) else bytes(block)

    def drop_lines(self) -> bool:
        """Drop lines, from the beginning of one, up to and with the next empty one (a CR does not count).

        False while that is not there; then at most two bytes are still held.
        """
        data = self._data
        empty_line = _EMPTY_LINE.search(data, self._position)
        if empty_line is not None:
            self._used_up_to(empty_line.end())
            return True
        last_line = max(self._position, data.rfind(_LF, self._position) + 1)
        # Whether a line is an empty one is seen in its last two bytes as well as in all of it.
        self._used_up_to(max(last_line, len(data) - 2))
        return False

    def _used_up_to(self, position: int) -> None:
        if position == len(self._data):
            self.clear()  # an idle connection keeps nothing
        else:
            self._position = self._scanned = position

    def clear(self) -> None:
        """Forget everything."""
        self._data = b""
        self._position = self._scanned = 0
