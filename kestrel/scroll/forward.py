"""Reading a writer file forward for one reader: the items that are for it, as memory frees for them."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader, Part
from kestrel.disk.records import DamagedRecord, UnfinishedRecord
from kestrel.scroll.records import (
    BELOW_ALL_IDS,
    FIRST_OF_EXPIRING_PUT,
    FIRST_OF_PUT,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    PUT_HEAD,
    Command,
    Record,
    Targets,
    decode_record,
)

_LEAST_BYTES: Final = 4096


class DamagedFile(OSError):
    """The file does not hold what it held when it was surveyed."""


class ItemsRead(NamedTuple):
    """Items as their PUT records; reading goes on with the item `next_id`, no earlier than at `offset`."""

    records: list[bytes]
    next_id: int
    offset: int


def read_items(
    reader: FileReader, offset: int, end: int, first_id: int, who: bytes, most_items: int, room_bytes: int
) -> ItemsRead:
    """The next items for that reader, from the item `first_id` on, which does not stand before `offset`.

    As many as stand near each other and find room (`room_bytes` of data), and one if there is one; what is not for
    the reader is passed over. With none the file holds no more up to `end`. Raises `DamagedFile`, or another OSError.
    """
    records: list[bytes] = []
    targets: Targets | None = None
    start, next_id = offset, first_id  # of the item that comes next, or of what says for whom it is
    last_id = BELOW_ALL_IDS
    usual = max(_LEAST_BYTES, min(PART_BYTES, 2 * room_bytes, most_items * _LEAST_BYTES))
    while offset < end and not records:
        data = reader.read(offset, min(usual, end - offset))
        if not data:
            raise DamagedFile(errno.EIO, "the journal file became shorter")
        part = Part(reader, offset, data)
        position = 0
        while position < len(data):
            command = data[position]
            header = PUT_BYTES if command == FIRST_OF_PUT else PUT_EXPIRING_BYTES
            if command in (FIRST_OF_PUT, FIRST_OF_EXPIRING_PUT) and position + header <= len(data):
                size, _, item_id = PUT_HEAD.unpack_from(data, position + 1)
                stop = position + header + size
            else:
                record = _decode(data, position, part)
                size, item_id, stop = record.data_size, record.item_id, position + record.size
                if record.command != Command.PUT:
                    targets = record.targets if record.command == Command.TARGETS else None
                    position = stop
                    start = start if targets is not None else offset + position
                    continue
            if size < 0 or offset + stop > end or item_id <= last_id:
                raise DamagedFile(errno.EIO, "the journal file is damaged")
            if item_id >= next_id and (targets is None or targets.has(who)):
                if records and (most_items <= len(records) or room_bytes <= 0):
                    return ItemsRead(records, next_id, start)
                if stop > len(data) and position:
                    break  # what the end of this part cuts begins the next
                records.append(data[position:stop] if stop <= len(data) else reader.read(offset + position, stop))
                room_bytes -= size
            next_id, last_id = max(next_id, item_id + 1), item_id
            targets, position = None, stop
            start = offset + position
        offset += position
    return ItemsRead(records, next_id, start)


def _decode(data: bytes, position: int, part: Part) -> Record:
    try:
        record = decode_record(data, position, part)
    except (DamagedRecord, UnfinishedRecord):
        record = None
    if record is None:
        raise DamagedFile(errno.EIO, "the journal file is damaged")
    return record
