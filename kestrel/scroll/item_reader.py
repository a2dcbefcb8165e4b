"""Read-behind: reading the items of one reader from a writer file into memory."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.scroll.record_cursor import MOST_RECORDS, ScrollRecordCursor
from kestrel.scroll.records import WORD_BYTES, WRITER_MAGIC

_MIN_READ_BYTES: Final = 4096


class DamagedScrollFile(OSError):
    """A writer file that has changed since it was indexed."""


class ScrollItemsRead(NamedTuple):
    """Items as their PUT records. The next read begins with the item `next_id`, which is at or after `offset`."""

    records: list[bytes]
    next_id: int
    offset: int


def read_items(
    reader: FileReader, offset: int, end: int, first_id: int, target_reader: bytes, most_items: int, room_bytes: int
) -> ScrollItemsRead:
    """Read the next items of a reader from the item `first_id` on, which is at or after `offset`.

    Return at most `most_items` items with about `room_bytes` of data, but at least one item if there is one. Items of
    other readers are skipped. An empty result means that the file has no more items up to the offset `end`. Raise
    `DamagedScrollFile`, or another OSError.
    """
    records: list[bytes] = []
    usual = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes, most_items * _MIN_READ_BYTES))
    cursor = ScrollRecordCursor(reader, WRITER_MAGIC, offset, end, has_data=False, ids_rise=True, part_bytes=usual)
    while cursor.next(MOST_RECORDS, max(_MIN_READ_BYTES, room_bytes), may_read=not records):
        if cursor.end.offset > end:
            raise DamagedScrollFile(errno.EIO, "the journal file is damaged")
        data, starts, run_end = cursor.data, cursor.starts, cursor.run_end
        is_wanted = cursor.is_plain and cursor.id_at(starts[0]) >= first_id
        if is_wanted and run_end <= len(data) and len(starts) <= most_items and cursor.data_bytes <= room_bytes:
            records += [data[position:after] for position, after in pairwise((*starts, run_end))]
            most_items -= len(starts)
            room_bytes -= cursor.data_bytes
            continue
        for item_id, size, targets, start, position in cursor.run_items():
            if item_id < first_id or not (targets is None or targets.has(target_reader)):
                continue
            after = position + 1 + WORD_BYTES * (data[position] & 15) + size
            if records and (most_items <= 0 or room_bytes <= 0):
                return ScrollItemsRead(records, item_id, start)
            if after <= len(data):
                records.append(data[position:after])
            elif records:
                # An item that the end of this part cuts off begins the next part.
                return ScrollItemsRead(records, item_id, start)
            else:
                records.append(reader.read(cursor.data_start + position, after - position))
            most_items -= 1
            room_bytes -= size
    if cursor.end.problem is not None or cursor.zeros_at is not None:
        raise DamagedScrollFile(errno.EIO, "the journal file is damaged")
    if not records and reader.size < end:
        raise DamagedScrollFile(errno.EIO, "the journal file became shorter")
    return ScrollItemsRead(records, max(first_id, cursor.item_id + 1), cursor.end.offset)
