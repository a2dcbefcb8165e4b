"""Replay: doing each record of a journal file in order, which re-creates the queue."""

from __future__ import annotations

import mmap
from typing import Final, Protocol

from kestrel.item import Item
from kestrel.journal.opcodes import ADDX_HEADER, Opcode
from kestrel.journal.records import (
    DamagedRecord,
    Record,
    UnfinishedRecord,
    decode_record,
    encode_announced_item,
    encode_item,
)

_ADDX: Final = int(Opcode.ADDX)
_REMOVE: Final = int(Opcode.REMOVE)
_TIMES_BYTES: Final = 16
_CUT_SHORT: Final = "the last record is cut short"


class Replayed(Protocol):
    """What records are done to: the bare window of a queue (`kestrel.storage.window.Window`)."""

    last_xid: int
    """The xid that was used last."""

    def next_xid(self) -> int:
        """The next one that is free."""

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
    trace of a crash, from damage. `is_closed` says that the file's last record lets nothing follow it.
    """

    __slots__ = ("is_closed", "is_unfinished", "offset", "problem", "records")

    def __init__(
        self,
        offset: int,
        records: int,
        problem: str | None = None,
        *,
        is_unfinished: bool = False,
        is_closed: bool = False,
    ) -> None:
        self.offset = offset
        self.records = records
        self.problem = problem
        self.is_unfinished = is_unfinished
        self.is_closed = is_closed


def replay(contents: mmap.mmap | bytes, queue: Replayed, now_ms: int) -> ReplayEnd:
    """Do every record of one file to `queue`; a record that names what is not there is ignored.

    `now_ms` is the add time of items whose record has none (ADD, of the earliest releases).
    """
    offset, end, records = 0, len(contents), 0
    unpack_addx, header_bytes = ADDX_HEADER.unpack_from, ADDX_HEADER.size
    record = None
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
                return ReplayEnd(offset, records, f"impossible size {size}")
            if after > end:
                return ReplayEnd(offset, records, _CUT_SHORT, is_unfinished=True)
            queue.append(contents[offset:after])
            offset = after
        else:
            try:
                record = decode_record(contents, offset)
            except UnfinishedRecord:
                return ReplayEnd(offset, records, _CUT_SHORT, is_unfinished=True)
            except DamagedRecord as damage:
                return ReplayEnd(offset, records, str(damage))
            _replay_rare(record, queue, now_ms)
            offset += record.size
        records += 1
    return ReplayEnd(offset, records, is_closed=record is not None and record.restates is not None)


def _replay_rare(record: Record, queue: Replayed, now_ms: int) -> None:
    opcode = record.opcode
    if record.restates is not None or opcode is Opcode.SAVE_XID:
        queue.last_xid = record.xid
    elif opcode is Opcode.REMOVE_TENTATIVE_XID:
        _open_head(queue, record.xid)
    elif opcode is Opcode.REMOVE_TENTATIVE:
        _open_head(queue, None)
    elif opcode is Opcode.CONFIRM_REMOVE:
        queue.finish(record.xid)
    elif opcode is Opcode.UNREMOVE:
        queue.push_back(record.xid, False)
    elif opcode is Opcode.ADD:
        queue.append(encode_item(record.data, now_ms, record.expiry_ms))
    elif opcode is Opcode.ADD_XID:
        queue.append(encode_announced_item(record.data, record.add_ms or 0, record.expiry_ms, record.xid))
    else:
        queue.finish(record.xid)
        queue.append(encode_item(record.data, record.add_ms or 0, record.expiry_ms))


def _open_head(queue: Replayed, xid: int | None) -> None:
    """Open the head under that xid; without one, under the one it was announced with, or else the next free one.

    An announced xid is an older one, of a read that was open when its file was written anew: the last one used is
    what SAVE_XID says, before such items or behind them.
    """
    item = queue.pop_head()
    if item is None:
        return
    if xid is None and item.xid:
        last_xid = queue.last_xid
        queue.open_as(item, item.xid)
        queue.last_xid = last_xid
    else:
        queue.open_as(item, queue.next_xid() if xid is None else xid)
