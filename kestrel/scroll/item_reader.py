"""Read-behind: reading the items of one reader from a writer file into memory."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, DamagedRecord, FilePart, FileReader, UnfinishedRecord
from kestrel.scroll.records import (
    BELOW_ALL_IDS,
    EXPIRING_PUT_FIRST_BYTE,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    PUT_FIRST_BYTE,
    PUT_HEAD,
    RecordCommand,
    ScrollFileRecord,
    Targets,
    decode_record,
)

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
    targets: Targets | None = None
    # `start` is the offset of the next item's records.
    start, next_id = offset, first_id
    last_id = BELOW_ALL_IDS
    usual = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes, most_items * _MIN_READ_BYTES))
    while offset < end and not records:
        data = reader.read(offset, min(usual, end - offset))
        if not data:
            raise DamagedScrollFile(errno.EIO, "the journal file became shorter")
        part = FilePart(reader, offset, data)
        position = 0
        while position < len(data):
            command = data[position]
            header = PUT_BYTES if command == PUT_FIRST_BYTE else PUT_EXPIRING_BYTES
            if command in (PUT_FIRST_BYTE, EXPIRING_PUT_FIRST_BYTE) and position + header <= len(data):
                size, _, item_id = PUT_HEAD.unpack_from(data, position + 1)
                stop = position + header + size
            else:
                record = _decode(data, position, part)
                size, item_id, stop = record.data_size, record.item_id, position + record.size
                if record.command != RecordCommand.PUT:
                    targets = record.targets if record.command == RecordCommand.TARGETS else None
                    position = stop
                    start = start if targets is not None else offset + position
                    continue
            if size < 0 or offset + stop > end or item_id <= last_id:
                raise DamagedScrollFile(errno.EIO, "the journal file is damaged")
            if item_id >= next_id and (targets is None or targets.has(target_reader)):
                if records and (most_items <= len(records) or room_bytes <= 0):
                    return ScrollItemsRead(records, next_id, start)
                if stop > len(data) and position:
                    # An item that the end of this part cuts off begins the next part.
                    break
                records.append(data[position:stop] if stop <= len(data) else reader.read(offset + position, stop))
                room_bytes -= size
            next_id, last_id = max(next_id, item_id + 1), item_id
            targets, position = None, stop
            start = offset + position
        offset += position
    return ScrollItemsRead(records, next_id, start)


def _decode(data: bytes, position: int, part: FilePart) -> ScrollFileRecord:
    try:
        record = decode_record(data, position, part)
    except (DamagedRecord, UnfinishedRecord):
        record = None
    if record is None:
        raise DamagedScrollFile(errno.EIO, "the journal file is damaged")
    return record
