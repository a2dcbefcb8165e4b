"""Replay: doing each record of a journal file in order, which re-creates the queue."""

from __future__ import annotations

import mmap
from typing import Final, Protocol

from kestrel.item import Item
from kestrel.journal.opcodes import ADDX_HEADER, Opcode
from kestrel.journal.records import (
    DamagedRecord,
    UnfinishedRecord,
    UnsupportedRecord,
    decode_record,
    encode_item,
)

_ADDX: Final = int(Opcode.ADDX)
_REMOVE: Final = int(Opcode.REMOVE)
_TIMES_BYTES: Final = 16


class Replayed(Protocol):
    """What records are done to: the bare window of a queue (`kestrel.storage.window.Window`)."""

    def append(self, record: bytes) -> None:
        """An item at the tail, as its ADDX record."""

    def pop_head(self) -> Item | None:
        """The head leaves the queue."""

    def open_as(self, item: Item, xid: int) -> None:
        """What has left is an open read."""

    def finish(self, xid: int) -> bool:
        """An open read is done with."""

    def push_back(self, xid: int, failed: bool) -> bool:
        """An open read goes back to the head."""


class ReplayEnd:
    """Where the replay of one file ended: the offset behind the last good record, and why it went no further.

    `problem` is None at the proper end of the file; `is_unfinished` tells a cut-short last record, the usual
    trace of a crash, from damage.
    """

    __slots__ = ("is_unfinished", "offset", "problem", "records")

    def __init__(self, offset: int, records: int, problem: str | None, is_unfinished: bool) -> None:
        self.offset = offset
        self.records = records
        self.problem = problem
        self.is_unfinished = is_unfinished


def replay(contents: mmap.mmap | bytes, queue: Replayed, now_ms: int) -> ReplayEnd:
    """Do every record of one file to `queue`; a record that names what is not there is ignored.

    `now_ms` is the add time of items whose record has none (ADD, of the earliest releases). Raises
    `UnsupportedRecord` for records of releases before 2.1 that are not read yet.
    """
    offset, end, records = 0, len(contents), 0
    unpack_addx, header_bytes = ADDX_HEADER.unpack_from, ADDX_HEADER.size
    while offset < end:
        # The two records of a plain queue first, without making objects.
        opcode = contents[offset]
        if opcode == _REMOVE:
            queue.pop_head()
            offset += 1
        elif opcode == _ADDX and offset + header_bytes <= end:
            size = unpack_addx(contents, offset)[1]
            after = offset + header_bytes - _TIMES_BYTES + size
            if size < _TIMES_BYTES:
                return ReplayEnd(offset, records, f"impossible size {size}", False)
            if after > end:
                return ReplayEnd(offset, records, "the last record is cut short", True)
            queue.append(contents[offset:after])
            offset = after
        else:
            try:
                offset += _replay_rare(contents, offset, queue, now_ms)
            except UnfinishedRecord:
                return ReplayEnd(offset, records, "the last record is cut short", True)
            except DamagedRecord as damage:
                return ReplayEnd(offset, records, str(damage), False)
        records += 1
    return ReplayEnd(offset, records, None, False)


def _replay_rare(contents: mmap.mmap | bytes, offset: int, queue: Replayed, now_ms: int) -> int:
    record = decode_record(contents, offset)
    opcode = record.opcode
    if opcode is Opcode.REMOVE_TENTATIVE_XID:
        item = queue.pop_head()
        if item is not None:
            queue.open_as(item, record.xid)
    elif opcode is Opcode.CONFIRM_REMOVE:
        queue.finish(record.xid)
    elif opcode is Opcode.UNREMOVE:
        queue.push_back(record.xid, False)
    elif opcode is Opcode.ADD:
        queue.append(encode_item(record.data, now_ms, record.expiry_ms))
    elif opcode is Opcode.CONTINUE:
        queue.finish(record.xid)
        queue.append(encode_item(record.data, record.add_ms or 0, record.expiry_ms))
    elif opcode is not Opcode.SAVE_XID:
        raise UnsupportedRecord(opcode.name)
    return record.size
