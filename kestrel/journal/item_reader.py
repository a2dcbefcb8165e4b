"""Read-behind: reading items that are only on disk into memory."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.disk.run_cursor import RUN_RECORDS
from kestrel.journal.cursor import ADDX, JournalCursor
from kestrel.journal.records import ADDX_HEADER_BYTES

_MIN_READ_BYTES: Final = 4096


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
    part_bytes = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes))
    cursor = JournalCursor(reader, offset - start, end - start, part_bytes=part_bytes)
    records: list[bytes] = []
    while (cursor.has_more or not records) and cursor.next(min(RUN_RECORDS, skip + max_items + 1)):
        data = cursor.data
        for position, after in cursor.bounds():
            is_usual = data[position] == ADDX
            if not is_usual and not cursor.adds_item(position):
                continue
            if skip:
                skip -= 1
                continue
            if len(records) == max_items or (room_bytes <= 0 and records):
                return JournalItemsRead(records, start + cursor.data_start + position, 0)
            record = data[position:after] if is_usual else cursor.decode(position).item_record(now_ms)
            records.append(record)
            room_bytes -= len(record) - ADDX_HEADER_BYTES
    # Damage matters only if no item was read, because anything may follow the last known item.
    if not records and start + cursor.end.offset < end:
        raise DamagedJournalFile(errno.EIO, "the journal file is damaged or has become shorter")
    return JournalItemsRead(records, start + cursor.end.offset, skip)
