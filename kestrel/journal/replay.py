"""Replay: doing each record of a journal file in order, which re-creates the queue."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, Protocol

from kestrel.disk.reader import PART_BYTES, FileReader, Part
from kestrel.disk.records import DamagedRecord, UnfinishedRecord
from kestrel.disk.repair import CUT_SHORT
from kestrel.item import Item
from kestrel.journal.error_counts import ERROR_COUNT_OPCODES, ErrorCounts
from kestrel.journal.opcodes import ADDX_HEADER, Opcode
from kestrel.journal.record_cursor import ReplayEnd
from kestrel.journal.records import JournalFileRecord, decode_record, encode_announced_item, encode_item

_ADDX: Final = int(Opcode.ADDX)
_REMOVE: Final = int(Opcode.REMOVE)
_TIMES_BYTES: Final = 16
_ADDX_HEADER_BYTES: Final = ADDX_HEADER.size
_ADDX_SIZE: Final = Struct("<xi")
"""The size alone of an ADDX, and the opcode before it."""
_SIZE_END: Final = _ADDX_SIZE.size


class RecordTarget(Protocol):
    """What records are done to, one by one."""

    last_xid: int
    """The xid that was used last."""

    def next_xid(self) -> int:
        """The next one that is free."""

    def append(self, record: bytes, offset: int) -> None:
        """An item at the tail, as its ADDX record; `offset` is the place in the queue's history where it stands."""

    def drop_head(self) -> None:
        """The head, if there is one, leaves the queue for good."""

    def pop_head(self) -> Item | None:
        """The head leaves the queue."""

    def open_as(self, item: Item, xid: int) -> None:
        """What has left is an open read."""

    def finish(self, xid: int) -> bool:
        """An open read is done with."""

    def push_back(self, xid: int, errors: int | None) -> bool:
        """An open read goes back to the head, with so many errors, or None with one more than it had."""

    def expect_implicit_xid(self) -> None:
        """The next record opens the head without saying its xid: that follows from records before it."""


class ReplayTarget(RecordTarget, Protocol):
    """What the records of files are done to."""

    def extend(self, records: list[bytes], offset: int) -> None:
        """Items one behind the other, the first of them at that offset."""


def replay(reader: FileReader, queue: ReplayTarget, now_ms: int, start: int = 0, offset: int = 0) -> ReplayEnd:
    """Do the records of one file from `offset` on to `queue`; a record that names what is not there is ignored.

    `now_ms` is the add time of items whose record has none (ADD, of the earliest releases); `start` is the place of
    the file's beginning in the queue's history.
    """
    records = needed = 0
    is_closed = False
    counts = ErrorCounts()
    while offset < reader.size:
        done = replay_part(reader.part(offset, max(PART_BYTES, needed)), queue, now_ms, start + offset, counts)
        offset += done.position
        records += done.records
        is_closed = done.is_closed
        if done.damage is not None:
            return ReplayEnd(offset, records, done.damage)
        needed = done.needed
        if needed > reader.size - offset:
            return ReplayEnd(offset, records, CUT_SHORT, is_unfinished=True)
    return ReplayEnd(offset, records, is_closed=is_closed)


class PartReplay(NamedTuple):
    """How far the records of a part went, and why no further.

    `needed` is 0, or the bytes that the record takes which begins at `position` and does not end in the part;
    `damage` is None, or why what stands there is no record.
    """

    position: int
    records: int
    needed: int = 0
    damage: str | None = None
    is_closed: bool = False


def replay_part(part: Part, queue: ReplayTarget, now_ms: int, start: int, counts: ErrorCounts) -> PartReplay:
    """Do the whole records of a part, which has its place in the queue's history at `start`; `counts` is its file's."""
    data, end = part.data, len(part.data)
    append, extend, drop_head = queue.append, queue.extend, queue.drop_head
    unpack_size = _ADDX_SIZE.unpack_from
    position = records = run_start = needed = 0
    run: list[bytes] = []
    damage = last = None
    while position < end:
        # The two records of a plain queue first, without making objects; items that follow each other at once.
        opcode = data[position]
        if opcode == _ADDX and position + _ADDX_HEADER_BYTES <= end:
            size = unpack_size(data, position)[0]
            after = position + _SIZE_END + size
            if size < _TIMES_BYTES:
                damage = f"impossible size {size}"
                break
            if after > end:
                needed = after - position
                break
            if not run:
                run_start = position
            run.append(data[position:after])
            position = after
        else:
            if len(run) == 1:
                append(run.pop(), start + run_start)
            elif run:
                extend(run, start + run_start)
                run = []
            if opcode == _REMOVE:
                drop_head()
                position += 1
            else:
                try:
                    last = decode_record(data, position, part)
                except UnfinishedRecord as unfinished:
                    needed = unfinished.needs
                    break
                except DamagedRecord as error:
                    damage = str(error)
                    break
                if opcode in ERROR_COUNT_OPCODES:
                    counts.find(last, start + position)
                replay_record(last, queue, now_ms, start + position)
                position += last.size
        records += 1
    if run:
        extend(run, start + run_start)
    return PartReplay(position, records, needed, damage, last is not None and last.restates is not None)


def replay_record(record: JournalFileRecord, queue: RecordTarget, now_ms: int, offset: int) -> None:
    """Do one record, which stands at `offset` of the queue's history; `now_ms` as in `replay`."""
    opcode = record.opcode
    if record.restates is not None or opcode is Opcode.SAVE_XID:
        queue.last_xid = record.xid
    elif opcode is Opcode.REMOVE_TENTATIVE_XID:
        _open_head(queue, record.xid)
    elif opcode is Opcode.REMOVE_TENTATIVE:
        queue.expect_implicit_xid()
        _open_head(queue, None)
    elif opcode is Opcode.CONFIRM_REMOVE:
        queue.finish(record.xid)
    elif opcode is Opcode.UNREMOVE:
        queue.push_back(record.xid, record.errors)
    elif opcode is Opcode.ADD:
        queue.append(encode_item(record.data, now_ms, record.expiry_ms), offset)
    elif opcode is Opcode.ADD_XID:
        queue.append(encode_announced_item(record.data, record.add_ms or 0, record.expiry_ms, record.xid), offset)
    elif opcode is Opcode.REMOVE:
        queue.drop_head()
    else:
        if opcode is Opcode.CONTINUE:
            queue.finish(record.xid)
        queue.append(encode_item(record.data, record.add_ms or 0, record.expiry_ms), offset)


def _open_head(queue: RecordTarget, xid: int | None) -> None:
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
