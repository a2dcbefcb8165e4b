"""Reading a writer file forward for one reader: the items that are for it, as memory frees for them."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader, Part
from kestrel.disk.records import DamagedRecord, UnfinishedRecord
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
    """The file does not hold what it held when it was surveyed."""


class ScrollItemsRead(NamedTuple):
    """Items as their PUT records; reading goes on with the item `next_id`, no earlier than at `offset`."""

    records: list[bytes]
    next_id: int
    offset: int


def read_items(
    reader: FileReader, offset: int, end: int, first_id: int, target_reader: bytes, most_items: int, room_bytes: int
) -> ScrollItemsRead:
    """The next items for that reader, from the item `first_id` on, which does not stand before `offset`.

    Reads items that lie near each other, up to `room_bytes` of data but at least one. Items of other readers are
    skipped. An empty result means that the file holds no more up to `end`. Raises `DamagedScrollFile`, or another
    OSError.
    """
    records: list[bytes] = []
    targets: Targets | None = None
    start, next_id = offset, first_id  # of the item that comes next, or of what says for whom it is
    last_id = BELOW_ALL_IDS
    usual = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes, most_items * _MIN_READ_BYTES))
    while offset < end and not records:
        data = reader.read(offset, min(usual, end - offset))
        if not data:
            raise DamagedScrollFile(errno.EIO, "the journal file became shorter")
        part = Part(reader, offset, data)
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
                    break  # what the end of this part cuts begins the next
                records.append(data[position:stop] if stop <= len(data) else reader.read(offset + position, stop))
                room_bytes -= size
            next_id, last_id = max(next_id, item_id + 1), item_id
            targets, position = None, stop
            start = offset + position
        offset += position
    return ScrollItemsRead(records, next_id, start)


def _decode(data: bytes, position: int, part: Part) -> ScrollFileRecord:
    try:
        record = decode_record(data, position, part)
    except (DamagedRecord, UnfinishedRecord):
        record = None
    if record is None:
        raise DamagedScrollFile(errno.EIO, "the journal file is damaged")
    return record
