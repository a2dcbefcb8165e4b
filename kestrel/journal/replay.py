"""Replay of journal files: applying their records in order to restore a queue."""

from __future__ import annotations

from typing import Final, Protocol

from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.item import Item
from kestrel.journal.cursor import ADDX, ErrorCounts, JournalCursor
from kestrel.journal.opcodes import XID_RECORD, Opcode
from kestrel.journal.records import JournalFileRecord

_REMOVE: Final = int(Opcode.REMOVE)
_OPEN: Final = int(Opcode.REMOVE_TENTATIVE_XID)
_CONFIRM: Final = int(Opcode.CONFIRM_REMOVE)


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


def replay(reader: FileReader, queue: ReplayTarget, now_ms: int, start: int = 0, offset: int = 0) -> ReadEnd:
    """Apply the records of one file from `offset` on to `queue`, and return where the replay ended.

    Records about an open read that does not exist are ignored. `now_ms` is the add time of items whose record has
    none (ADD, of the earliest releases). `start` is the offset of the file in the queue's history.
    """
    cursor, counts = JournalCursor(reader, offset), ErrorCounts()
    while cursor.next():
        _replay_run(cursor, queue, now_ms, start + cursor.data_start, counts)
    return cursor.end


def _replay_run(cursor: JournalCursor, queue: ReplayTarget, now_ms: int, start: int, counts: ErrorCounts) -> None:
    """Apply a run of records. `start` is the offset of its data in the queue's history."""
    data, unpack_xid = cursor.data, XID_RECORD.unpack_from
    items: list[bytes] = []
    items_start = 0
    for position, after in cursor.bounds():
        opcode = data[position]
        if opcode == ADDX:
            if not items:
                items_start = position
            items.append(data[position:after])
            continue
        if len(items) == 1:
            queue.append(items.pop(), start + items_start)
        elif items:
            queue.extend(items, start + items_start)
            items = []
        # The most frequent records are replayed without an object for each.
        if opcode == _REMOVE:
            queue.drop_head()
        elif opcode == _OPEN:
            _open_head(queue, unpack_xid(data, position)[1])
        elif opcode == _CONFIRM:
            queue.finish(unpack_xid(data, position)[1])
        else:
            record = cursor.decode(position)
            counts.find(record, start + position)
            replay_record(record, queue, now_ms, start + position)
    if items:
        queue.extend(items, start + items_start)


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
    elif opcode is Opcode.REMOVE:
        queue.drop_head()
    else:
        if opcode is Opcode.CONTINUE:
            queue.finish(record.xid)
        queue.append(record.item_record(now_ms), offset)


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
