"""A cursor over the records of a journal file that creates no object for each record."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from kestrel.compiled import BUILD
from kestrel.disk.reader import PART_BYTES, DamagedRecord, FilePart, FileReader, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.journal.opcodes import ADDX_HEADER, STATE_DUMP_RECORD, XID_RECORD, Opcode
from kestrel.journal.records import decode_record

LARGE_RECORD_BYTES: Final = 64 * 1024
SMALL_READ_BYTES: Final = 4096
"""Bytes that are read after a record of `LARGE_RECORD_BYTES` or more if data is not wanted."""

_ADDX: Final = int(Opcode.ADDX)
_ADDX_BYTES: Final = ADDX_HEADER.size
_ADDX_SIZE: Final = Struct("<xi")
_SIZE_END: Final = _ADDX_SIZE.size
_SIGN_BYTE: Final = 0x80
_IS_COMPILED: Final = BUILD == "compiled"
"""Compiled code reads the size from single bytes in a third of the time of Struct; Python takes twice that time."""

_TIMES_BYTES: Final = 16
_XID_BYTES: Final = XID_RECORD.size
_RUN_RECORDS: Final = 1 << 16
_BARE: Final = (int(Opcode.REMOVE), int(Opcode.REMOVE_TENTATIVE))
_XID_ONLY: Final = (
    int(Opcode.REMOVE_TENTATIVE_XID),
    int(Opcode.CONFIRM_REMOVE),
    int(Opcode.UNREMOVE),
    int(Opcode.SAVE_XID),
)


class JournalRunCursor:
    """A cursor that returns runs of the records that begin from `start` up to, but not at, `stop`.

    A record must begin at `start`. After `next`, `data` has the bytes of the file from offset `data_start` on. `starts`
    has the positions in `data` where the records of the run begin, and `run_end` is the end of the last one. Without
    `has_data`, large records are not read completely, so `run_end` may be beyond the end of `data`. `dump_at` is the
    position of a STATE_DUMP, which is always the last record, or -1. `end` says how far the file is valid.
    """

    def __init__(
        self, reader: FileReader, start: int, stop: int, *, has_data: bool, part_bytes: int = PART_BYTES
    ) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._stop = stop
        self._has_data = has_data
        self._is_after_large = False
        self.end = ReadEnd(start)
        self.data = b""
        self.data_start = start
        self.starts: list[int] = []
        self.run_end = 0
        self.dump_at = -1

    def next(self, most: int) -> bool:
        """Read the next run of at most `most` records. Return False if there is none. Raise OSError."""
        end, reader = self.end, self._reader
        needed = 0
        self.starts = []
        while not self.starts:
            if end.problem is not None or end.offset >= min(self._stop, reader.size):
                return False
            size = SMALL_READ_BYTES if self._is_after_large else self._part_bytes
            part = reader.part(end.offset, max(size, needed))
            needed = self._collect(part, most)
            if needed > reader.size - end.offset:
                end.problem, end.is_unfinished = TORN_RECORD, True
        return True

    def _collect(self, part: FilePart, most: int) -> int:
        """Collect the records of a part. Return 0, or the least size of the next record if it is incomplete."""
        data, starts, unpack_size = part.data, self.starts, _ADDX_SIZE.unpack_from
        length, bytes_to_end = len(data), part.length
        stop = min(length, self._stop - self.end.offset)
        position = needed = last = size = 0
        damage: str | None = None
        self.dump_at = -1
        while position < stop and len(starts) < most:
            opcode = data[position]
            if opcode == _ADDX:
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
                    damage = f"impossible size {size}"
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
                except DamagedRecord as error:
                    damage = str(error)
                    break
                after = position + record.size
                if record.restates is not None:
                    if position + STATE_DUMP_RECORD.size > length:  # decoded from bytes beyond the part
                        needed = STATE_DUMP_RECORD.size
                        break
                    self.dump_at = position
            starts.append(position)
            last, position = position, after
        if starts:
            self.data, self.data_start, self.run_end = data, self.end.offset, position
            self._is_after_large = not self._has_data and position - last >= LARGE_RECORD_BYTES
            self.end.offset += position
            self.end.problem = damage
            # The next call computes what the next record needs.
            return 0
        self.end.problem = damage
        return needed


def locate_items(reader: FileReader, stop: int, wanted: Sequence[int]) -> list[int]:
    """Return the offsets of some items' records in a journal file that has records up to the offset `stop`.

    `wanted` has the numbers of the items in the file, in ascending order; 0 is the first item. There are fewer offsets
    if the file has fewer items, or if it is damaged before them. Raise OSError.
    """
    cursor = JournalRunCursor(reader, 0, stop, has_data=False)
    offsets: list[int] = []
    number = 0
    next_wanted = wanted[0] if wanted else -1
    while next_wanted >= 0 and cursor.next(min(_RUN_RECORDS, wanted[-1] + 1 - number)):
        data = cursor.data
        for position in cursor.starts:
            opcode = data[position]
            if opcode in _BARE or opcode in _XID_ONLY or position == cursor.dump_at:
                continue
            if number == next_wanted:
                offsets.append(cursor.data_start + position)
                next_wanted = wanted[len(offsets)] if len(offsets) < len(wanted) else -1
            number += 1
    return offsets
