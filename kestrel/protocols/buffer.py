"""The buffer of received bytes that are not parsed yet."""

from __future__ import annotations

import re
from typing import Final

CRLF: Final = b"\r\n"
_LF: Final = b"\n"

_MAX_USED_BYTES: Final = 4096
"""Limit of used bytes that are kept. Above it, the rest is copied if it is smaller than the used bytes."""

_MIN_PIECE_BYTES: Final = 4096
"""Received pieces of at least this size are kept as they are. Smaller pieces are joined."""

_EMPTY_LINE: Final = re.compile(rb"^\r?\n", re.MULTILINE)


class NoLineEnd(Exception):
    """A block that is not followed by its line end."""


class ReceiveBuffer:
    """A buffer that splits received bytes into lines and blocks. It scans each byte once, however small the pieces are.

    While whole requests arrive, the transport's own bytes object is sliced and little is copied. `_pieces` and `_tail`
    are used only for requests that arrive in pieces, until they are complete. A large block is copied once.
    """

    __slots__ = (
        "_data",
        "_is_closed",
        "_pieces",
        "_pieces_scanned",
        "_position",
        "_scanned",
        "_tail",
        "_tail_scanned",
        "size",
    )

    def __init__(self) -> None:
        self.size = 0
        """Number of held bytes."""
        self._data: bytes = b""
        self._position = 0
        self._scanned = 0
        self._pieces: list[bytes] = []
        """Large pieces received after `_data`, the start of an incomplete request."""
        self._tail = bytearray()
        """Small pieces received after `_pieces`."""
        self._pieces_scanned = 0
        self._tail_scanned = 0
        self._is_closed = False

    def receive(self, data: bytes) -> None:
        """Append received bytes, or drop them if the buffer is closed."""
        if self._is_closed:
            return
        if self.size:
            if len(data) < _MIN_PIECE_BYTES:
                self._tail += data
            else:
                if self._tail:
                    self._pieces.append(bytes(self._tail))
                    self._tail = bytearray()
                    self._tail_scanned = 0
                self._pieces.append(data)
        else:
            self._data = data
            self._position = self._scanned = 0
        self.size += len(data)

    def skip(self, expected: bytes) -> bool:
        """Drop `expected` if it comes next. Return False, and drop nothing, otherwise or if it is incomplete."""
        begin = self._position
        end = begin + len(expected)
        if self._data[begin:end] != expected:
            return False
        self._used_up_to(end)
        return True

    def take_line(self) -> bytes | None:
        """Return the next line without its line feed, or None while it is incomplete."""
        if not self.size:
            return None
        end = self._data.find(_LF, self._scanned)
        if end < 0:
            self._scanned = len(self._data)
            if not self._has_line_end_in_pieces():
                return None
            self._join()
            end = self._data.find(_LF, self._scanned)
        line = self._data[self._position : end]
        self._used_up_to(end + 1)
        return line

    def _has_line_end_in_pieces(self) -> bool:
        """Search the bytes behind `_data` that were not searched before."""
        while self._pieces_scanned < len(self._pieces):
            if _LF in self._pieces[self._pieces_scanned]:
                return True
            self._pieces_scanned += 1
        if self._tail.find(_LF, self._tail_scanned) >= 0:
            return True
        self._tail_scanned = len(self._tail)
        return False

    def take(self, size: int, line_end: bytes = b"") -> bytes | None:
        """Return the next `size` bytes and drop the line end after them, or return None until all are there.

        Raises `NoLineEnd` if the bytes are not followed by `line_end`.
        """
        needed = size + len(line_end)
        if needed > self.size:
            return None
        if self._position + needed > len(self._data):
            last: bytes | bytearray = self._tail or (self._pieces[-1] if self._pieces else b"")
            end = size - (self.size - len(last))
            if end >= 0:
                return self._take_to(last, end, line_end)
            self._join()
        data, begin = self._data, self._position
        end = begin + size
        if line_end and data[end : end + len(line_end)] != line_end:
            raise NoLineEnd
        self._used_up_to(begin + needed)
        return data[begin:end]

    def _take_to(self, last: bytes | bytearray, end: int, line_end: bytes) -> bytes:
        """Do the same as `take` with a block that ends at `end` of the `last` piece. Nothing else is copied."""
        rest = end + len(line_end)
        if last[end:rest] != line_end:
            raise NoLineEnd
        pieces = self._pieces if last is self._tail else self._pieces[:-1]
        taken = b"".join([memoryview(self._data)[self._position :], *pieces, memoryview(last)[:end]])
        self._data = bytes(memoryview(last)[rest:])
        self.size = len(self._data)
        self._position = self._scanned = 0
        self._drop_pieces()
        return taken

    def drop_lines(self) -> bool:
        """Drop lines up to and including the next empty one. A CR does not count as content.

        Return False if there is no empty line yet. At most two bytes are held then.
        """
        self._join()
        data = self._data
        empty_line = _EMPTY_LINE.search(data, self._position)
        if empty_line is not None:
            self._used_up_to(empty_line.end())
            return True
        last_line = max(self._position, data.rfind(_LF, self._position) + 1)
        # The last two bytes are enough to recognize an empty line.
        self._used_up_to(max(last_line, len(data) - 2))
        return False

    def _join(self) -> None:
        """Move all held bytes into `_data`."""
        if self._tail or self._pieces:
            self._scanned -= self._position
            self._data = b"".join([memoryview(self._data)[self._position :], *self._pieces, self._tail])
            self._position = 0
            self._drop_pieces()

    def _drop_pieces(self) -> None:
        self._pieces = []
        self._tail = bytearray()
        self._pieces_scanned = self._tail_scanned = 0

    def _used_up_to(self, position: int) -> None:
        left = len(self._data) - position
        self.size -= position - self._position
        if not left:  # an idle connection holds no bytes
            self._data = b""
            position = 0
        elif position > _MAX_USED_BYTES and position > left:
            self._data = self._data[position:]
            position = 0
        self._position = self._scanned = position

    def close(self) -> None:
        """Drop all held bytes, and those that follow."""
        self._is_closed = True
        self.clear()

    def clear(self) -> None:
        """Drop all held bytes."""
        self._data = b""
        self.size = self._position = self._scanned = 0
        self._drop_pieces()
