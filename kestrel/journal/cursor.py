"""A cursor over the records of one journal file, and what is found with it: error counts and the places of items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from kestrel.compiled import BUILD
from kestrel.disk.reader import PART_BYTES, DamagedRecord, FileReader, UnfinishedRecord
from kestrel.disk.run_cursor import RUN_RECORDS, RunCursor
from kestrel.journal.opcodes import (
    ADDX_HEADER,
    BARE_OPCODES,
    ITEM_OPCODES,
    STATE_DUMP_RECORD,
    XID_OPCODES,
    XID_RECORD,
    Opcode,
)
from kestrel.journal.records import JournalFileRecord, decode_record

ADDX: Final = int(Opcode.ADDX)

# Plain numbers are compared faster than members of an enumeration.
_BARE: Final = tuple(map(int, BARE_OPCODES))
_XID_ONLY: Final = tuple(map(int, XID_OPCODES))
_ITEMS: Final = tuple(map(int, ITEM_OPCODES))

_ADDX_BYTES: Final = ADDX_HEADER.size
_ADDX_SIZE: Final = Struct("<xi")
_SIZE_END: Final = _ADDX_SIZE.size
_SIGN_BYTE: Final = 0x80
_IS_COMPILED: Final = BUILD == "compiled"
"""Compiled code reads the size from single bytes in a third of the time of Struct; Python takes twice that time."""

_TIMES_BYTES: Final = 16
_XID_BYTES: Final = XID_RECORD.size


class ErrorCounts:
    """A recogniser of the error counts of one file. Its records without an item must be passed to `find` in order.

    A SAVE_XID directly before an UNREMOVE has the number of errors of its item. An UNREMOVE without a SAVE_XID adds one
    error. docs/decisions/0008 explains why the counts are written in this way.
    """

    def __init__(self) -> None:
        self._errors = 0
        self._errors_end = -1
        """Offset of the end of the SAVE_XID that set `_errors`."""
        self._restated_end = -1
        """Offset of the end of open reads that a release before 2.1 rewrote as ADD_XID and REMOVE_TENTATIVE."""

    def find(self, record: JournalFileRecord, offset: int) -> None:
        """Set `record.errors` if the record is an UNREMOVE directly after an error count. `offset` is its start."""
        opcode, end = record.opcode, offset + record.size
        if opcode is Opcode.UNREMOVE:
            if offset == self._errors_end:
                record.errors = self._errors
        elif opcode is Opcode.SAVE_XID:
            # After rewritten open reads, a SAVE_XID has the last xid and is not an error count.
            if record.xid >= 0 and offset != self._restated_end:
                self._errors, self._errors_end = record.xid, end
        elif opcode is Opcode.ADD_XID or (opcode is Opcode.REMOVE_TENTATIVE and offset == self._restated_end):
            self._restated_end = end


class JournalCursor(RunCursor):
    """A cursor over the records of a journal file (`RunCursor`).

    `dump_at` is the position of a STATE_DUMP, which is always the last record, or -1.
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
        super().__init__(reader, start, stop, has_data=has_data, part_bytes=part_bytes)
        self.dump_at = -1

    def adds_item(self, position: int) -> bool:
        """Return whether the record of the run that begins at `position` of `data` adds an item."""
        return self.data[position] in _ITEMS and position != self.dump_at

    def decode(self, position: int) -> JournalFileRecord:
        """Return the record of the run that begins at `position` of `data`, which must have the record's data."""
        return decode_record(self.data, position, self._part)

    def records(self) -> Iterator[tuple[int, JournalFileRecord]]:
        """Yield the other records with their offsets and error counts. `has_data` must be set. Raise OSError."""
        counts = ErrorCounts()
        while self.next():
            for position in self.starts:
                record = self.decode(position)
                counts.find(record, self.data_start + position)
                yield self.data_start + position, record

    def _collect(self, stop: int, most: int) -> int:
        data, starts, unpack_size = self.data, self.starts, _ADDX_SIZE.unpack_from
        part, position = self._part, self.run_end
        length, bytes_to_end = len(data), part.length
        needed = size = 0
        self.dump_at = -1
        while position < stop and len(starts) < most:
            opcode = data[position]
            if opcode == ADDX:
                if position + _ADDX_BYTES > length:
                    needed = _ADDX_BYTES
                    break
                if _IS_COMPILED:
                    high = data[position + 4]
                    size = data[position + 1] | data[position + 2] << 8 | data[position + 3] << 16 | high << 24
                    if high >= _SIGN_BYTE:
                        size -= 1 << 32
                else:
                    size = unpack_size(data, position)[0]
                after = position + _SIZE_END + size
                if size < _TIMES_BYTES:
                    self._end_with(f"impossible size {size}")
                    break
                if after > length and (self._has_data or after > bytes_to_end):
                    needed = after - position
                    break
            elif opcode in _BARE:
                after = position + 1
            elif opcode in _XID_ONLY:
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
                except DamagedRecord as damage:
                    self._end_with(str(damage))
                    break
                after = position + record.size
                if record.restates is not None:
                    if position + STATE_DUMP_RECORD.size > length:  # decoded from bytes beyond the part
                        needed = STATE_DUMP_RECORD.size
                        break
                    self.dump_at = position
                    self.end.is_closed = True
            starts.append(position)
            position = after
        self.run_end = position
        return needed


def locate_items(reader: FileReader, stop: int, wanted: Sequence[int]) -> list[int]:
    """Return the offsets of some items' records in a journal file that has records up to the offset `stop`.

    `wanted` has the numbers of the items in the file, in ascending order; 0 is the first item. There are fewer offsets
    if the file has fewer items, or if it is damaged before them. Raise OSError.
    """
    cursor = JournalCursor(reader, 0, stop, has_data=False)
    offsets: list[int] = []
    number = 0
    next_wanted = wanted[0] if wanted else -1
    while next_wanted >= 0 and cursor.next(min(RUN_RECORDS, wanted[-1] + 1 - number)):
        for position in cursor.starts:
            if not cursor.adds_item(position):
                continue
            if number == next_wanted:
                offsets.append(cursor.data_start + position)
                next_wanted = wanted[len(offsets)] if len(offsets) < len(wanted) else -1
            number += 1
    return offsets
