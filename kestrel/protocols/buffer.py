"""Received bytes that are not parsed yet."""

from __future__ import annotations

import re
from typing import Final

_LF: Final = b"\n"
_CRLF: Final = b"\r\n"

_MIN_COPY_BYTES: Final = 4096
"""What is used of the transport's bytes is let go of when it is more than that, and more than what is left of them."""

_EMPTY_LINE: Final = re.compile(rb"^\r?\n", re.MULTILINE)


class NoLineEnd(Exception):
    """Behind a block there is something else than the line end that closes it."""


class ReceiveBuffer:
    """Bytes in, lines and blocks out; each byte is looked at once, however small the pieces.

    While whole requests arrive, the transport's own bytes object is sliced, and little is copied: a rest, so that it
    does not keep all that came with it. The tail is used only for requests that arrive in pieces, until they are whole.
    """

    __slots__ = ("_data", "_position", "_scanned", "_tail", "_tail_scanned")

    def __init__(self) -> None:
        self._data: bytes = b""
        self._position = 0
        self._scanned = 0
        self._tail = bytearray()
        """What came behind `_data`, which is the beginning of something."""
        self._tail_scanned = 0

    def __len__(self) -> int:
        """How many bytes are held."""
        return len(self._data) - self._position + len(self._tail)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._data and not self._tail

    def receive(self, data: bytes) -> None:
        """Append what the network brought."""
        if self._position < len(self._data) or self._tail:
            self._tail += data
        else:
            self._data = data
            self._position = self._scanned = 0

    def take_line(self) -> bytes | None:
        """The next line without its line feed, or None while it is not complete."""
        if self.is_empty:
            return None
        end = self._data.find(_LF, self._scanned)
        if end < 0:
            self._scanned = len(self._data)
            if self._tail.find(_LF, self._tail_scanned) < 0:
                self._tail_scanned = len(self._tail)
                return None
            self._join()
            end = self._data.find(_LF, self._scanned)
        line = self._data[self._position : end]
        self._used_up_to(end + 1)
        return line

    def take(self, size: int) -> bytes | None:
        """The next `size` bytes, or None while they are not all there."""
        if not self._has(size):
            return None
        end = self._position + size
        block = self._data[self._position : end]
        self._used_up_to(end)
        return block

    def take_block(self, size: int) -> bytes | None:
        """The next `size` bytes, and the CRLF behind them is dropped; or None while they are not all there.

        Raises `NoLineEnd` if there is something else in the CRLF's place.
        """
        if not self._has(size + len(_CRLF)):
            return None
        data = self._data
        begin = self._position
        end = begin + size
        if data[end : end + len(_CRLF)] != _CRLF:
            raise NoLineEnd
        self._used_up_to(end + len(_CRLF))
        return data[begin:end]

    def drop_lines(self) -> bool:
        """Drop lines, from the beginning of one, up to and with the next empty one (a CR does not count).

        False while that is not there; then at most two bytes are still held.
        """
        self._join()
        data = self._data
        empty_line = _EMPTY_LINE.search(data, self._position)
        if empty_line is not None:
            self._used_up_to(empty_line.end())
            return True
        last_line = max(self._position, data.rfind(_LF, self._position) + 1)
        # Whether a line is an empty one is seen in its last two bytes as well as in all of it.
        self._used_up_to(max(last_line, len(data) - 2))
        return False

    def _has(self, size: int) -> bool:
        """Whether so many bytes are there; then they are in `_data`."""
        if self._position + size <= len(self._data):
            return True
        if len(self) < size:
            return False
        self._join()
        return True

    def _join(self) -> None:
        """All that is held into `_data`."""
        if self._tail:
            self._scanned -= self._position
            self._data = b"".join((memoryview(self._data)[self._position :], self._tail))
            self._position = 0
            self._tail = bytearray()
            self._tail_scanned = 0

    def _used_up_to(self, position: int) -> None:
        left = len(self._data) - position
        if not left:  # an idle connection keeps nothing
            self._data = b""
            position = 0
        elif position > _MIN_COPY_BYTES and position > left:
            self._data = self._data[position:]
            position = 0
        self._position = self._scanned = position

    def clear(self) -> None:
        """Forget everything."""
        self._data = b""
        self._position = self._scanned = self._tail_scanned = 0
        self._tail = bytearray()
