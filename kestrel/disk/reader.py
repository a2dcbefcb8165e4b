"""Reading a file in parts, which needs little memory for a large file, and the errors that all decoders share."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol, Self

from kestrel.disk.files import Disk, appending

PART_BYTES: Final = 1 << 20


class FilePart:
    """A range of a file's bytes (a `ByteSource`)."""

    __slots__ = ("_reader", "_start", "data", "length")

    def __init__(self, reader: FileReader, start: int, data: bytes) -> None:
        self._reader = reader
        self._start = start
        self.data = data
        self.length = reader.size - start

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset` from the start of this part, or fewer if the file ends before.

        Bytes after this part are read from the file.
        """
        if offset + size <= len(self.data):
            return self.data[offset : offset + size]
        return self._reader.read(self._start + offset, size)


class FileReader:
    """An open file of records. Methods raise OSError, also for a bad sector.

    `size` is the length in bytes at the time of opening. Bytes that were appended later are ignored.
    """

    def __init__(self, disk: Disk, path: bytes) -> None:
        self._disk = disk
        self._descriptor = disk.open_read(path)
        self.size = disk.size(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, or fewer if the file ended there when it was opened."""
        size = max(0, min(size, self.size - offset))
        data = self._disk.read(self._descriptor, offset, size)
        if len(data) < size:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        return data

    def part(self, offset: int, size: int = PART_BYTES) -> FilePart:
        """Return the part that begins at `offset`. It has `size` bytes, or ends with the file."""
        return FilePart(self, offset, self.read(offset, size))

    def close(self) -> None:
        self._disk.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def copy_range(disk: Disk, reader: FileReader, start: int, end: int, path: bytes) -> None:
    """Append the bytes from `start` up to `end` to the file at `path`, and sync it. Create the file if needed."""
    with appending(disk, path) as descriptor:
        for offset in range(start, end, PART_BYTES):
            disk.write(descriptor, reader.read(offset, min(PART_BYTES, end - offset)))
        disk.sync(descriptor)


@contextmanager
def erased_on_error(disk: Disk, paths: Collection[bytes]) -> Iterator[None]:
    """Erase the files at `paths` if the block raises an OSError. A file that cannot be erased is left."""
    try:
        yield
    except OSError:
        for path in paths:
            with suppress(OSError):
                disk.erase(path)
        raise


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
    """The bytes of a file from an offset on. The first of them are in a buffer (`FilePart`)."""

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
