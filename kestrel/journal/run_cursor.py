"""Going through a journal file from record to record, without making an object of each."""

from __future__ import annotations

from struct import Struct
from typing import Final

from kestrel.disk.reader import PART_BYTES, FileReader, Part
from kestrel.disk.records import DamagedRecord, UnfinishedRecord
from kestrel.disk.repair import CUT_SHORT, End
from kestrel.journal.opcodes import ADDX_HEADER, XID_RECORD, Opcode
from kestrel.journal.records import decode_record

LARGE_RECORD_BYTES: Final = 64 * 1024
SMALL_READ_BYTES: Final = 4096
"""Behind a record that large, no more than this is read to find the next one, where data is not wanted."""

_ADDX: Final = int(Opcode.ADDX)
_ADDX_BYTES: Final = ADDX_HEADER.size
_ADDX_SIZE: Final = Struct("<xi")
_SIZE_END: Final = _ADDX_SIZE.size
_TIMES_BYTES: Final = 16
_XID_BYTES: Final = XID_RECORD.size
_BARE: Final = (int(Opcode.REMOVE), int(Opcode.REMOVE_TENTATIVE))
_XID_ONLY: Final = (
    int(Opcode.REMOVE_TENTATIVE_XID),
    int(Opcode.CONFIRM_REMOVE),
    int(Opcode.UNREMOVE),
    int(Opcode.SAVE_XID),
)


class JournalRunCursor:
    """The records of a file from `start`, where one begins, until one begins at `stop` or behind it: run by run.

    After `next` the run's records begin at `starts`, as positions in `data`, which begins at the offset `data_start`
    of the file; the last of them ends at `run_end`. Where data is not wanted, it may end behind `data`: no record of
    which only the header counts is read whole. `dump_at` is the position of a STATE_DUMP, which always is the last
    record, or -1. `end` says how far the file is good.
    """

    def __init__(
        self, reader: FileReader, start: int, stop: int, *, has_data: bool, part_bytes: int = PART_BYTES
    ) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._stop = stop
        self._has_data = has_data
        self._is_behind_large = False
        self.end = End(start)
        self.data = b""
        self.data_start = start
        self.starts: list[int] = []
        self.run_end = 0
        self.dump_at = -1

    def next(self, most: int) -> bool:
        """The next run, of at most so many records. False if there is none. Raises OSError."""
        end, reader = self.end, self._reader
        needed = 0
        self.starts = []
        while not self.starts:
            if end.problem is not None or end.offset >= min(self._stop, reader.size):
                return False
            size = SMALL_READ_BYTES if self._is_behind_large else self._part_bytes
            part = reader.part(end.offset, max(size, needed))
            needed = self._go(part, most)
            if needed > reader.size - end.offset:
                end.problem, end.is_unfinished = CUT_SHORT, True
        return True

    def _go(self, part: Part, most: int) -> int:
        """Go over the records of a part. Returns 0, or how many bytes the next one takes at least."""
        data, starts, unpack_size = part.data, self.starts, _ADDX_SIZE.unpack_from
        length, whole = len(data), part.length
        stop = min(length, self._stop - self.end.offset)
        position = needed = last = 0
        damage: str | None = None
        self.dump_at = -1
        while position < stop and len(starts) < most:
            opcode = data[position]
            if opcode == _ADDX:
                if position + _ADDX_BYTES > length:
                    needed = _ADDX_BYTES
                    break
                size: int = unpack_size(data, position)[0]
                after = position + _SIZE_END + size
                if size < _TIMES_BYTES:
                    damage = f"impossible size {size}"
                    break
                if after > length and (self._has_data or after > whole):
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
                    self.dump_at = position
            starts.append(position)
            last, position = position, after
        if starts:
            self.data, self.data_start, self.run_end = data, self.end.offset, position
            self._is_behind_large = not self._has_data and position - last >= LARGE_RECORD_BYTES
            self.end.offset += position
            self.end.problem = damage
            return 0  # what the next one needs is asked again where it begins
        self.end.problem = damage
        return needed
