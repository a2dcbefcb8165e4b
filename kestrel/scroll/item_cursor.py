"""A cursor over the items of a writer file that does not read their data."""

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
    RecordCommand,
    ScrollFileRecord,
    Targets,
    decode_record,
)
from kestrel.scroll.writer_file import MARK_BYTES, Counts

LARGE_ITEM_BYTES: Final = 16 * 1024
SMALL_READ_BYTES: Final = 4096
"""Bytes that are read to find the next header after an item of `LARGE_ITEM_BYTES` or more."""


class ScrollItemCursor:
    """A cursor over the items of a file from `offset` on, where a record must begin.

    After `next`, `start` is the offset of the item's records, and `item_id`, `data_bytes` and `targets` describe the
    item.
    """

    def __init__(self, reader: FileReader, offset: int, part_bytes: int = MARK_BYTES) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._offset = offset
        """Offset at which the next record begins."""
        self._data = b""
        self._data_start = offset
        """Offset at which `_data` begins."""
        self.start = offset
        self.item_id = BELOW_ALL_IDS
        self.data_bytes = 0
        self.targets: Targets | None = None
        self.end = ReadEnd(offset)

    def next(self) -> bool:
        """Move to the next item. Return False at the end of the valid records; `end` says how the file ends."""
        self.targets = None
        self.start = self._offset
        file_size = self._reader.size
        while self._offset < file_size:
            position = self._offset - self._data_start
            if position + PUT_EXPIRING_BYTES > len(self._data):
                size = self._part_bytes if self.data_bytes < LARGE_ITEM_BYTES else SMALL_READ_BYTES
                self._data = self._reader.read(self._offset, size)
                self._data_start, position = self._offset, 0
            command = self._data[position]
            if command in (PUT_FIRST_BYTE, EXPIRING_PUT_FIRST_BYTE):
                header = PUT_BYTES if command == PUT_FIRST_BYTE else PUT_EXPIRING_BYTES
                if self._offset + header > file_size:
                    return self._end_with(TORN_RECORD, is_unfinished=True)
                size, _, item_id = PUT_HEAD.unpack_from(self._data, position + 1)
                if not 0 <= size <= MAX_DATA_BYTES:
                    return self._end_with(f"impossible size {size}")
                if not self.item_id < item_id <= LARGEST_ID:
                    return self._end_with("impossible id")
                if self._offset + header + size > file_size:
                    return self._end_with(TORN_RECORD, is_unfinished=True)
                self._offset += header + size
                self.item_id, self.data_bytes = item_id, size
                self.end.offset = self._offset
                return True
            if not command:
                return self._check_trailing_zeros()
            record = self._other_record()
            if record is None:
                return False
            start, self._offset = self._offset, self._offset + record.size
            if record.command == RecordCommand.PUT:
                if record.item_id <= self.item_id:
                    return self._end_with("impossible id")
                self.item_id, self.data_bytes = record.item_id, record.data_size
                self.end.offset = self._offset
                return True
            self.targets = record.targets if record.command == RecordCommand.TARGETS else None
            if self.targets is None:
                self.start = self._offset
                self.end.offset = self._offset
            else:
                self.start = start
        if self.targets is not None:
            # The PUT after the TARGETS is missing.
            return self._end_with(TORN_RECORD, is_unfinished=True)
        return False

    def run(self) -> Counts:
        """Move over adjacent items for all readers, and return their counts. The cursor is then at the last of them.

        It stops at the end of the buffered bytes, after `MARK_BYTES`, or at any record other than a valid PUT in its
        usual form.
        """
        data, unpack = self._data, PUT_HEAD.unpack_from
        position = begin = self._offset - self._data_start
        stop = min(len(data) - PUT_EXPIRING_BYTES, begin + MARK_BYTES)
        last_start, last_id, items, data_size = self.start, self.item_id, 0, 0
        while position < stop:
            command = data[position]
            header = PUT_BYTES if command == PUT_FIRST_BYTE else PUT_EXPIRING_BYTES
            size, _, item_id = unpack(data, position + 1)
            end = position + header + size
            if command not in (PUT_FIRST_BYTE, EXPIRING_PUT_FIRST_BYTE) or size < 0 or end > len(data):
                break
            if not last_id < item_id <= LARGEST_ID:
                break
            last_start, last_id = position, item_id
            items += 1
            data_size += size
            position = end
        if items:
            self.start, self.item_id = self._data_start + last_start, last_id
            self._offset = self.end.offset = self._data_start + position
        return Counts(items, data_size)

    def _other_record(self) -> ScrollFileRecord | None:
        """Return a record other than a PUT in its usual form, or None if it is invalid; then `end` says why."""
        part = FilePart(self._reader, self._data_start, self._data)
        try:
            return decode_record(self._data, self._offset - self._data_start, part)
        except UnfinishedRecord:
            self._end_with(TORN_RECORD, is_unfinished=True)
        except DamagedRecord as damage:
            self._end_with(str(damage))
        return None

    def _end_with(self, problem: str, *, is_unfinished: bool = False) -> bool:
        self.end.problem, self.end.is_unfinished = problem, is_unfinished
        return False

    def _check_trailing_zeros(self) -> bool:
        """Check that only zeros follow, which a writer that preallocates its files leaves after its last record."""
        for offset in range(self._offset, self._reader.size, PART_BYTES):
            if self._reader.read(offset, PART_BYTES).strip(b"\0"):
                return self._end_with("zeros before other bytes", is_unfinished=True)
        return False
