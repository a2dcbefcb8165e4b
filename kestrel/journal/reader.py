"""One journal file, read part by part: a large file takes little memory, and a bad sector is an OSError."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from kestrel.disk.files import Disk
from kestrel.journal.error_counts import ErrorCounts
from kestrel.journal.records import DamagedRecord, Record, UnfinishedRecord, decode_record

PART_BYTES: Final = 1 << 20

CUT_SHORT: Final = "the last record is cut short"


class Part:
    """A run of a file's bytes (`kestrel.journal.records.Whole`)."""

    __slots__ = ("_reader", "_start", "data", "length")

    def __init__(self, reader: JournalReader, start: int, size: int) -> None:
        self._reader = reader
        self._start = start
        self.data = reader.read(start, size)
        self.length = reader.size - start

    def look(self, offset: int, size: int) -> bytes:
        """The bytes there, in this part or behind it; fewer where the file ends."""
        if offset + size <= len(self.data):
            return self.data[offset : offset + size]
        return self._reader.read(self._start + offset, size)


class JournalReader:
    """A file of records, open to be read. Raises OSError; `size` is that at the opening."""

    def __init__(self, disk: Disk, path: bytes) -> None:
        self._disk = disk
        self._descriptor = disk.open_read(path)
        self.size = disk.size(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes there, fewer where the file ended when it was opened."""
        size = max(0, min(size, self.size - offset))
        data = self._disk.read(self._descriptor, offset, size)
        if len(data) < size:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        return data

    def part(self, offset: int, size: int = PART_BYTES) -> Part:
        """The part that begins there, of that size or to the end of the file."""
        return Part(self, offset, size)

    def close(self) -> None:
        """Give the descriptor back."""
        self._disk.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReplayEnd:
    """Where the reading of one file ended: the offset behind the last good record, and why it went no further.

    `problem` is None at the proper end of the file; `is_unfinished` tells a cut-short last record, the usual
    trace of a crash, from damage. `is_closed` says that the file's last record lets nothing follow it.
    """

    __slots__ = ("is_closed", "is_unfinished", "offset", "problem", "records")

    def __init__(
        self,
        offset: int,
        records: int,
        problem: str | None = None,
        *,
        is_unfinished: bool = False,
        is_closed: bool = False,
    ) -> None:
        self.offset = offset
        self.records = records
        self.problem = problem
        self.is_unfinished = is_unfinished
        self.is_closed = is_closed


class RecordScan:
    """The records of one file, one by one, with their offsets; `end` says afterwards how the file ended."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self.end = ReplayEnd(0, 0)

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        reader, end = self._reader, self.end
        counts = ErrorCounts()
        needed = 0
        while end.offset < reader.size:
            part = reader.part(end.offset, max(PART_BYTES, needed))
            position = needed = 0
            while position < len(part.data):
                try:
                    record = decode_record(part.data, position, part)
                except UnfinishedRecord as unfinished:
                    needed = unfinished.needs
                    break
                except DamagedRecord as damage:
                    end.problem = str(damage)
                    return
                counts.find(record, end.offset)
                yield end.offset, record
                position += record.size
                end.offset += record.size
                end.records += 1
                end.is_closed = record.restates is not None
            if needed > reader.size - end.offset:
                end.problem, end.is_unfinished = CUT_SHORT, True
                return
