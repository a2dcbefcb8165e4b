"""Going through a writer file from item to item, without reading their data."""

from __future__ import annotations

from typing import Final

from kestrel.disk.reader import PART_BYTES, FileReader, Part
from kestrel.disk.records import DamagedRecord, UnfinishedRecord
from kestrel.disk.repair import CUT_SHORT, End
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
"""Behind an item that large, no more than this is read to find the next header."""


class ScrollItemCursor:
    """Goes from item to item of a file. `start` is where the item's records begin."""

    def __init__(self, reader: FileReader, offset: int, part_bytes: int = MARK_BYTES) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._offset = offset
        """Where the next record begins,"""
        self._data = b""
        self._data_start = offset
        """and where the bytes at hand begin."""
        self.start = offset
        self.item_id = BELOW_ALL_IDS
        self.data_bytes = 0
        self.targets: Targets | None = None
        self.end = End(offset)

    def next(self) -> bool:
        """The next item. False at the end of what is good: `end` says how that is."""
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
                    return self._ends(CUT_SHORT, is_unfinished=True)
                size, _, item_id = PUT_HEAD.unpack_from(self._data, position + 1)
                if not 0 <= size <= MAX_DATA_BYTES:
                    return self._ends(f"impossible size {size}")
                if not self.item_id < item_id <= LARGEST_ID:
                    return self._ends("impossible id")
                if self._offset + header + size > file_size:
                    return self._ends(CUT_SHORT, is_unfinished=True)
                self._offset += header + size
                self.item_id, self.data_bytes = item_id, size
                self.end.offset = self._offset
                return True
            if not command:
                return self._ends_with_zeros()
            record = self._other_record()
            if record is None:
                return False
            start, self._offset = self._offset, self._offset + record.size
            if record.command == RecordCommand.PUT:
                if record.item_id <= self.item_id:
                    return self._ends("impossible id")
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
            return self._ends(CUT_SHORT, is_unfinished=True)  # the item that it is about is missing
        return False

    def run(self) -> Counts:
        """Go on over items in their usual form, whose ids rise and which are for all, as far as the bytes at hand go.

        No further than it is from one mark to the next. It stands at the last of them then.
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
        """One that is no item in its usual form. None: it is not good, and `end` says why."""
        part = Part(self._reader, self._data_start, self._data)
        try:
            return decode_record(self._data, self._offset - self._data_start, part)
        except UnfinishedRecord:
            self._ends(CUT_SHORT, is_unfinished=True)
        except DamagedRecord as damage:
            self._ends(str(damage))
        return None

    def _ends(self, problem: str, *, is_unfinished: bool = False) -> bool:
        self.end.problem, self.end.is_unfinished = problem, is_unfinished
        return False

    def _ends_with_zeros(self) -> bool:
        """A writer that makes its files large at once leaves zeros behind its last record."""
        for offset in range(self._offset, self._reader.size, PART_BYTES):
            if self._reader.read(offset, PART_BYTES).strip(b"\0"):
                return self._ends("zeros stand before other bytes", is_unfinished=True)
        return False
