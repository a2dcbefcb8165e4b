"""Types that all record formats share: a source of bytes, and the two errors of a decoder."""

from __future__ import annotations

from typing import Protocol


class UnfinishedRecord(Exception):
    """The bytes end before the record does, which is the usual end of a file after a crash.

    `needs` is the least length of the record, in bytes from its start.
    """

    def __init__(self, needs: int) -> None:
        super().__init__(f"the record has at least {needs} bytes")
        self.needs = needs


class DamagedRecord(Exception):
    """The bytes are not a record. The message says why, such as an unknown first byte or an impossible size."""


class ByteSource(Protocol):
    """The bytes of a file from some offset on, the first of which are in a buffer (`kestrel.disk.reader.FilePart`)."""

    length: int
    """Number of bytes from the start of the buffer to the end of the file."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset` from the start of the buffer, or fewer if the file ends before."""


class BufferSource:
    """A `ByteSource` whose bytes are all in a buffer."""

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self.length = len(buffer)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, or fewer if the buffer ends before."""
        return self._buffer[offset : offset + size]
