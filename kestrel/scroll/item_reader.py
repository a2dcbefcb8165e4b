"""Read-behind: reading the items of one reader from a writer file into memory."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.disk.run_cursor import RUN_RECORDS
from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.records import WRITER_MAGIC

_MIN_READ_BYTES: Final = 4096
_FEW_RECORDS: Final = 32
"""Records that may precede the first item."""


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
    part_bytes = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes, most_items * _MIN_READ_BYTES))
    # Large items of other readers are not read.
    cursor = ScrollCursor(reader, WRITER_MAGIC, offset, end, has_data=False, part_bytes=part_bytes)
    records: list[bytes] = []
    next_id = first_id
    while (cursor.has_more or not records) and cursor.next(min(RUN_RECORDS, most_items + _FEW_RECORDS)):
        data = cursor.data
        for item in cursor.items_of_run(first_id):
            if item.targets is None or item.targets.has(target_reader):
                if records and (len(records) >= most_items or room_bytes <= 0):
                    return ScrollItemsRead(records, next_id, item.offset)
                is_cut = item.end > len(data)
                position = cursor.data_start + item.start
                records.append(reader.read(position, item.end - item.start) if is_cut else data[item.start : item.end])
                room_bytes -= item.data_bytes
            next_id = item.item_id + 1
    if cursor.is_over or (not records and cursor.end.offset < end):
        raise DamagedScrollFile(errno.EIO, "the journal file is damaged or has become shorter")
    return ScrollItemsRead(records, next_id, cursor.end.offset)
