"""Replay of journal files: applying their records in order to restore a queue."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, Protocol

from kestrel.disk.reader import PART_BYTES, DamagedRecord, FilePart, FileReader, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD
from kestrel.item import Item
from kestrel.journal.opcodes import ADDX_HEADER, Opcode
from kestrel.journal.record_cursor import ERROR_COUNT_OPCODES, ErrorCounts, ReplayEnd
from kestrel.journal.records import JournalFileRecord, decode_record, encode_announced_item, encode_item

_ADDX: Final = int(Opcode.ADDX)
_REMOVE: Final = int(Opcode.REMOVE)
_TIMES_BYTES: Final = 16
_ADDX_HEADER_BYTES: Final = ADDX_HEADER.size
_ADDX_SIZE: Final = Struct("<xi")
"""The opcode and the size field of an ADDX; only the size is unpacked."""
_SIZE_END: Final = _ADDX_SIZE.size


class RecordTarget(Protocol):
    """A queue that changes by one record at a time."""

    last_xid: int
    """The xid that was used last."""

    def next_xid(self) -> int:
        """Return the next free xid."""

    def append(self, record: bytes, offset: int) -> None:
        """Append an item, given as its ADDX record, which is at `offset` of the queue's history."""

    def drop_head(self) -> None:
        """Remove the head, if there is one."""

    def pop_head(self) -> Item | None:
        """Remove and return the head, or return None if the queue is empty."""

    def open_as(self, item: Item, xid: int) -> None:
        """Add an item that `pop_head` returned as an open read with the id `xid`."""

    def finish(self, xid: int) -> bool:
        """Confirm an open read. Return whether it was open."""

    def push_back(self, xid: int, errors: int | None) -> bool:
        """Put an open read back at the head. Return whether it was open.

        The item then has `errors` errors, or one more than before if `errors` is None.
        """

    def expect_implicit_xid(self) -> None:
        """Prepare for a record that opens the head without its xid, which follows from earlier records."""


class ReplayTarget(RecordTarget, Protocol):
    """A queue that a replay of files rebuilds."""

    def extend(self, records: list[bytes], offset: int) -> None:
        """Append items, given as adjacent ADDX records that begin at `offset` of the queue's history."""


def replay(reader: FileReader, queue: ReplayTarget, now_ms: int, start: int = 0, offset: int = 0) -> ReplayEnd:
    """Apply the records of one file from `offset` on to `queue`, and return where the replay ended.

    Records about an open read that does not exist are ignored. `now_ms` is the add time of items whose record has
    none (ADD, of the earliest releases). `start` is the offset of the file in the queue's history.
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
            return ReplayEnd(offset, records, TORN_RECORD, is_unfinished=True)
    return ReplayEnd(offset, records, is_closed=is_closed)


class PartReplay(NamedTuple):
    """The result of `replay_part`: the position where it ended, the number of records, and the reason.

    `needed` is the size of an unfinished record at `position`, or 0. `damage` says why the bytes at `position` are not
    a record, or is None. `is_closed` is True if the last record was a STATE_DUMP, which must end its file.
    """

    position: int
    records: int
    needed: int = 0
    damage: str | None = None
    is_closed: bool = False


def replay_part(part: FilePart, queue: ReplayTarget, now_ms: int, start: int, counts: ErrorCounts) -> PartReplay:
    """Apply the complete records of a part of a file to `queue`.

    `start` is the offset of the part in the queue's history. All parts of a file share its `counts`.
    """
    data, end = part.data, len(part.data)
    append, extend, drop_head = queue.append, queue.extend, queue.drop_head
    unpack_size = _ADDX_SIZE.unpack_from
    position = records = run_start = needed = 0
    run: list[bytes] = []
    damage = last = None
    while position < end:
        # Fast path without objects for the two most frequent records. Adjacent items are appended together.
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
    """Apply one record, which is at `offset` of the queue's history, to `queue`.

    `now_ms` is the add time of an item whose record has none.
    """
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
    """Make the head an open read with the id `xid`, or else with its announced xid, or else with the next free one.

    An announced xid belongs to a read that was open when the file was rewritten. It does not change `last_xid`, which
    is set by a SAVE_XID record before or after such items.
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
