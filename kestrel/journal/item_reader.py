"""Read-behind: reading items that are only on disk into memory."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.journal.opcodes import Opcode
from kestrel.journal.record_cursor import JournalRecordCursor
from kestrel.journal.records import ADDX_HEADER_BYTES

_MIN_READ_BYTES: Final = 4096

_ADDX: Final = int(Opcode.ADDX)
_OTHER_ADDS: Final = frozenset({Opcode.ADD, Opcode.ADD_XID, Opcode.CONTINUE})


class DamagedJournalFile(OSError):
    """A journal file that has changed since it was replayed. Only another replay can read it."""


class JournalItemsRead(NamedTuple):
    """Items as their ADDX records. The next read begins at `offset` of the history and skips `skip` items."""

    records: list[bytes]
    offset: int
    skip: int


def read_items(
    reader: FileReader, start: int, offset: int, end: int, skip: int, max_items: int, room_bytes: int, now_ms: int
) -> JournalItemsRead:
    """Read the next items from `offset` on, after skipping `skip` items.

    Return at most `max_items` items with about `room_bytes` of data, but at least one item if there is one. `start` is
    the offset of the file in the history. Reading stops at the offset `end`. `now_ms` is the add time of items whose
    record has none. Records that do not add items are ignored. Raise `DamagedJournalFile`, or another OSError if the
    file cannot be read.
    """
    records: list[bytes] = []
    usual = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes))
    cursor = JournalRecordCursor(reader, offset - start, end - start, part_bytes=usual)
    while not records and cursor.next():
        data, run_start = cursor.data, start + cursor.data_start
        if start + cursor.end.offset > end:
            raise DamagedJournalFile(errno.EIO, "the journal file is damaged")
        for position, after in pairwise((*cursor.starts, cursor.run_end)):
            opcode = data[position]
            if opcode == _ADDX:
                record = data[position:after]
            elif opcode in _OTHER_ADDS and (other := cursor.record_at(position)).adds_item:
                record = other.item_record(now_ms)
            else:
                continue
            if skip:
                skip -= 1
            elif len(records) < max_items and (room_bytes > 0 or not records):
                records.append(record)
                room_bytes -= len(record) - ADDX_HEADER_BYTES
            else:
                return JournalItemsRead(records, run_start + position, skip)
    # Damage matters only if no item was read, because anything may follow the last known item.
    if not records and start + cursor.end.offset < end:
        problem = "became shorter" if cursor.end.problem is None else "is damaged"
        raise DamagedJournalFile(errno.EIO, f"the journal file {problem}")
    return JournalItemsRead(records, start + cursor.end.offset, skip)
