"""What every format has that is made of records: a run of bytes to be read, and the two ways in which they are none."""

from __future__ import annotations

from typing import Protocol


class UnfinishedRecord(Exception):
    """The bytes end before the record does: the usual end of a file after a crash.

    `needs` is how many bytes the record takes at least, from its beginning on.
    """

    def __init__(self, needs: int) -> None:
        super().__init__(f"the record takes {needs} bytes at least")
        self.needs = needs


class DamagedRecord(Exception):
    """These bytes are no record: an unknown beginning, an impossible size. Says which."""


class ByteSource(Protocol):
    """What a buffer is the beginning of (`kestrel.disk.reader.FilePart`)."""

    length: int
    """In bytes, from the buffer's beginning to the end of the file."""

    def read_at(self, offset: int, size: int) -> bytes:
        """The bytes there, in the buffer or behind it; fewer where the file ends."""


class BufferSource:
    """A buffer that is the whole (`ByteSource`)."""

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self.length = len(buffer)

    def read_at(self, offset: int, size: int) -> bytes:
        """The bytes there."""
        return self._buffer[offset : offset + size]
