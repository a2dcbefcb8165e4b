"""A cursor over the records of a writer or reader file that creates no object for each record."""

from __future__ import annotations

from typing import Final

from kestrel.disk.reader import PART_BYTES, DamagedRecord, FilePart, FileReader, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.scroll.records import (
    BELOW_ALL_IDS,
    EXPIRING_PUT_FIRST_BYTE,
    LARGEST_ID,
    MAX_DATA_BYTES,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    PUT_FIRST_BYTE,
    PUT_HEAD,
    WRITER_MAGIC,
    RecordCommand,
    ScrollFileRecord,
    decode_record,
)

LARGE_ITEM_BYTES: Final = 64 * 1024
SMALL_READ_BYTES: Final = 4096
"""Bytes that are read after an item of `LARGE_ITEM_BYTES` or more if data is not wanted."""


class ScrollRunCursor:
    """A cursor that returns runs of the records that begin from `start` up to, but not at, `stop`.

    A record must begin at `start`, or it is 0 for the whole file. After `next`, `data` has the bytes of the file from
    offset `data_start` on. `starts` has the positions in `data` where the records of the run begin, and `run_end` is
    the end of the last one. Without `has_data`, it may be beyond the end of `data`. `end` says how far the file is
    valid.

    In a writer file, an id that is not higher than the one before it is damage. A TARGETS without its PUT at the end of
    the file is returned, but counts as unfinished.
    """

    def __init__(
        self,
        reader: FileReader,
        magic: bytes,
        start: int,
        stop: int,
        *,
        has_data: bool,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._stop = stop
        self._has_data = has_data
        self._ids_rise = magic == WRITER_MAGIC
        self._last_id = BELOW_ALL_IDS
        self._offset = start
        self._targets_at: int | None = None
        """Offset of a TARGETS whose PUT has not been read yet, or None."""
        self._is_over = False
        self._is_after_large = False
        self.end = ReadEnd(start)
        self.data = b""
        self.data_start = start
        self.starts: list[int] = []
        self.run_end = 0
        if not start:
            self._begin(magic)

    def _begin(self, magic: bytes) -> None:
        begins_with = self._reader.read(0, len(magic))
        if begins_with == magic:
            self._offset = self.end.offset = len(magic)
        else:
            is_unfinished = magic.startswith(begins_with)
            problem = TORN_RECORD if is_unfinished else f"it does not begin with {magic.hex(' ')}"
            self._end_with(problem, is_unfinished=is_unfinished)

    def _end_with(self, problem: str, *, is_unfinished: bool = False) -> None:
        self._is_over = True
        self.end.problem, self.end.is_unfinished = problem, is_unfinished

    def next(self, most: int) -> bool:
        """Read the next run of at most `most` records. Return False if there is none. Raise OSError."""
        reader = self._reader
        needed = 0
        self.starts = []
        while not self.starts and not self._is_over and self._offset < min(self._stop, reader.size):
            size = SMALL_READ_BYTES if self._is_after_large else self._part_bytes
            needed = self._collect(reader.part(self._offset, max(size, needed)), most)
            if needed > reader.size - self._offset:
                self._end_with(TORN_RECORD, is_unfinished=True)
        is_at_end = self._is_over or self._offset >= reader.size
        if is_at_end and self._targets_at is not None and self.end.problem is None:
            self._end_with(TORN_RECORD, is_unfinished=True)
        return bool(self.starts)

    def _collect(self, part: FilePart, most: int) -> int:
        """Collect the records of a part. Return 0, or the least size of the next record if it is incomplete."""
        data, starts, unpack_head = part.data, self.starts, PUT_HEAD.unpack_from
        length, bytes_to_end = len(data), part.length
        stop = min(length, self._stop - self._offset)
        position = needed = last = 0
        while position < stop and len(starts) < most:
            first = data[position]
            targets_at: int | None = None
            if first in (PUT_FIRST_BYTE, EXPIRING_PUT_FIRST_BYTE):
                header = PUT_BYTES if first == PUT_FIRST_BYTE else PUT_EXPIRING_BYTES
                if position + header > length:
                    needed = header
                    break
                size, _, item_id = unpack_head(data, position + 1)
                after = position + header + size
                if not 0 <= size <= MAX_DATA_BYTES:
                    self._end_with(f"impossible size {size}")
                    break
                if after > length and (self._has_data or after > bytes_to_end):
                    needed = after - position
                    break
                if not self._is_possible(item_id):
                    break
            else:
                record = self._decoded(data, position, part)
                if record is None or (record.command == RecordCommand.PUT and not self._is_possible(record.item_id)):
                    break
                after = position + record.size
                if after > length:
                    needed = record.size
                    break
                if record.command == RecordCommand.TARGETS and record.targets is not None:
                    targets_at = self._offset + position if self._targets_at is None else self._targets_at
            starts.append(position)
            self._targets_at = targets_at
            last, position = position, after
        if not starts:
            return needed
        self.data, self.data_start, self.run_end = data, self._offset, position
        self._is_after_large = not self._has_data and position - last >= LARGE_ITEM_BYTES
        self._offset += position
        self.end.offset = self._offset if self._targets_at is None else self._targets_at
        # The next call computes what the next record needs.
        return 0

    def _is_possible(self, item_id: int) -> bool:
        """Return whether an item may have this id here. If not, end with damage. In reader files any order is valid."""
        if item_id > LARGEST_ID or (self._ids_rise and item_id <= self._last_id):
            self._end_with("impossible id")
            return False
        self._last_id = item_id
        return True

    def _decoded(self, data: bytes, position: int, part: FilePart) -> ScrollFileRecord | None:
        """Return a record other than a PUT in its usual form, or None if it is invalid or ends the file."""
        try:
            record = decode_record(data, position, part)
        except UnfinishedRecord:
            self._end_with(TORN_RECORD, is_unfinished=True)
        except DamagedRecord as damage:
            self._end_with(str(damage))
        else:
            if record is None:
                self._is_over = True
            return record
        return None
