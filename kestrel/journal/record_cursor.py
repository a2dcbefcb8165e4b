"""The cursor over the records of one journal file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kestrel.disk.reader import PART_BYTES, FilePart, FileReader
from kestrel.disk.records import DamagedRecord, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.journal.error_counts import ERROR_COUNT_OPCODES, ErrorCounts
from kestrel.journal.opcodes import (
    ADDX_HEADER,
    ADDX_SIZE,
    ADDX_SIZE_END,
    BARE_OPCODES,
    TIMES_BYTES,
    XID_OPCODES,
    XID_RECORD,
    Opcode,
)
from kestrel.journal.records import JournalFileRecord, decode_record

MOST_RECORDS: Final = 1 << 16
"""Usual limit of the records of a run, which bounds the memory for their positions."""

LARGE_RECORD_BYTES: Final = 64 * 1024
SMALL_READ_BYTES: Final = 4096
"""Bytes that are read after a record of `LARGE_RECORD_BYTES` or more if data is not wanted."""

_ADDX: Final = int(Opcode.ADDX)
_ADDX_BYTES: Final = ADDX_HEADER.size
_XID_BYTES: Final = XID_RECORD.size


class JournalRecordCursor:
    """A cursor over the records that begin from `start` up to, but not at, `stop`, by default the end of the file.

    A record must begin at `start`. An iteration yields the offset and the decoded record of each one. `next` reads a
    run of records instead, and creates no object for a record. After it, `data` has the bytes of the file from offset
    `data_start` on. `starts` has the positions in `data` where the records of the run begin, and `run_end` is the end
    of the last one. Without `has_data`, large records are not read completely, so `run_end` may be beyond the end of
    `data`.

    `end` says how far the file is valid, up to the end of the run. `records` is the number of records up to there.
    `is_closed` is True if the last of them is a STATE_DUMP, which must end its file.
    """

    def __init__(
        self,
        reader: FileReader,
        start: int = 0,
        stop: int | None = None,
        *,
        has_data: bool = True,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._stop = reader.size if stop is None else min(stop, reader.size)
        self._has_data = has_data
        self._is_after_large = False
        self._part = FilePart(reader, start, b"")
        self.end = ReadEnd(start)
        self.records = 0
        self.is_closed = False
        self.data = b""
        self.data_start = start
        self.starts: list[int] = []
        self.run_end = 0

    def __iter__(self) -> Iterator[tuple[int, JournalFileRecord]]:
        counts = ErrorCounts()
        while self.next():
            data, data_start, part = self.data, self.data_start, self._part
            for position in self.starts:
                record = decode_record(data, position, part)
                if data[position] in ERROR_COUNT_OPCODES:
                    counts.find(record, data_start + position)
                yield data_start + position, record

    def record_at(self, position: int) -> JournalFileRecord:
        """Return the record of the run that begins at `position` of `data`, without its error count."""
        return decode_record(self.data, position, self._part)

    def next(self, most: int = MOST_RECORDS) -> bool:
        """Read the next run of at most `most` records. Return False if there is none. Raise OSError."""
        end, reader = self.end, self._reader
        needed = 0
        self.starts = []
        while not self.starts:
            if end.problem is not None or end.offset >= self._stop:
                return False
            size = SMALL_READ_BYTES if self._is_after_large else self._part_bytes
            self._part = reader.part(end.offset, max(min(size, self._stop - end.offset), needed))
            needed = self._collect(self._part, most)
            if needed > reader.size - end.offset:
                end.problem, end.is_unfinished = TORN_RECORD, True
        return True

    def _collect(self, part: FilePart, most: int) -> int:
        """Collect the records of a part. Return 0, or the least size of the next record if it is incomplete."""
        data, starts, unpack_size = part.data, self.starts, ADDX_SIZE.unpack_from
        length, bytes_to_end = len(data), part.length
        stop = min(length, self._stop - self.end.offset)
        position = needed = last = 0
        damage: str | None = None
        while position < stop and len(starts) < most:
            opcode = data[position]
            if opcode == _ADDX:
                if position + _ADDX_BYTES > length:
                    needed = _ADDX_BYTES
                    break
                size: int = unpack_size(data, position)[0]
                after = position + ADDX_SIZE_END + size
                if size < TIMES_BYTES:
                    damage = f"impossible size {size}"
                    break
                if after > length and (self._has_data or after > bytes_to_end):
                    needed = after - position
                    break
            elif opcode in BARE_OPCODES:
                after = position + 1
            elif opcode in XID_OPCODES:
                after = position + _XID_BYTES
                if after > length:
                    needed = _XID_BYTES
                    break
            else:
                try:
                    record = decode_record(data, position, part)
                except UnfinishedRecord as unfinished:
                    needed = unfinished.needs
                    break
                except DamagedRecord as error:
                    damage = str(error)
                    break
                after = position + record.size
                if record.restates is not None:
                    self.is_closed = True
            starts.append(position)
            last, position = position, after
        self.end.problem = damage
        if not starts:
            return needed
        self.data, self.data_start, self.run_end = data, self.end.offset, position
        self._is_after_large = not self._has_data and position - last >= LARGE_RECORD_BYTES
        self.end.offset += position
        self.records += len(starts)
        # The next call computes what the next record needs.
        return 0
