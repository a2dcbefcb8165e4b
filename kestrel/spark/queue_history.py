"""Replay of one queue's journal into the histories of its items, independent of Spark.

Records are replayed as at a start of the server (`kestrel.journal.replay`), and items that leave the queue are emitted.
Memory holds the items that are in the queue, and those that left it since the last add. Records that remove an item
have no time, so the next add gives the upper bound of their time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from kestrel.item import Item
from kestrel.journal.cursor import ErrorCounts
from kestrel.journal.opcodes import AnnouncedRecord, Opcode
from kestrel.journal.records import JournalFileRecord
from kestrel.journal.replay import replay_record

QUEUED: Final = "queued"
OPEN: Final = "open"
REMOVED: Final = "removed"
CONFIRMED: Final = "confirmed"
CONTINUED: Final = "continued"

YES: Final = "yes"
NO: Final = "no"
MAYBE: Final = "maybe"

LAST_XID: Final = (1 << 31) - 1
MOST_ERRORS: Final = (1 << 31) - 1

_ADDING: Final = frozenset({Opcode.ADD, Opcode.ADDX, Opcode.ADD_XID})

_TAKING_AWAY: Final = frozenset({Opcode.REMOVE, Opcode.CONFIRM_REMOVE, Opcode.CONTINUE})
"""Opcodes that a rewrite of a file never contains."""


@dataclass(slots=True, eq=False)
class ItemHistory:
    """The history of one item. Times are in ms since 1970, or None if unknown."""

    item_id: ClassVar[None] = None
    """A journal has no ids."""

    file: str
    offset: int
    """Offset in that file of the record that added the item."""
    add_ms: int | None
    expiry_ms: int | None
    data_bytes: int
    data: bytes | None
    state: str = QUEUED
    opens: int = 0
    aborts: int = 0
    errors: int = 0
    xid: int | None = None
    announced_xid: int = 0
    """Number of its next open read, as releases before 2.1 record it."""
    position: int | None = None
    """Position in the queue after a restart, if the item is still there."""
    taken_after_ms: int | None = None
    taken_before_ms: int | None = None
    removed_after_ms: int | None = None
    removed_before_ms: int | None = None
    discarded: str | None = None

    @property
    def expired(self) -> str | None:
        """For a removed item, whether it had expired by then: yes, no or maybe; else None."""
        if self.state != REMOVED:
            return None
        if self.expiry_ms is None:
            return NO
        if self.removed_after_ms is not None and self.expiry_ms < self.removed_after_ms:
            return YES
        return NO if self.removed_before_ms is not None and self.expiry_ms >= self.removed_before_ms else MAYBE


class QueueHistory:
    """A queue that replays records (`kestrel.journal.replay.RecordTarget`) and collects the histories of its items.

    Call `do` for each record in order, or `put` and `drop_head` for the two records of plain queues, and empty `gone`
    regularly. At the end call `rest` for the remaining items. With `max_items`, the queue's limit, a removed item may
    have been discarded if the queue had more items, or was full and the next record adds one. A get at that moment
    leaves the same records.
    """

    def __init__(self, max_items: int | None = None) -> None:
        self.gone: list[ItemHistory] = []
        self.last_xid = 0
        self._max_items = max_items
        self._items: deque[ItemHistory] = deque()
        self._open: dict[int, ItemHistory] = {}
        self._counts = ErrorCounts()
        self._file: str | None = None
        self._may_be_rewritten = True
        """True while all records may belong to a rewrite: in the first file, until a record removes an item.

        The items of a rewrite have their original add times, which give no bounds for earlier records.
        """
        self._last_ms: int | None = None
        self._taken: list[ItemHistory] = []
        self._removed: list[ItemHistory] = []
        """Items that were taken or removed since the last add."""
        self._adding: ItemHistory | None = None
        self._popped: ItemHistory | None = None
        self._finishes_as = CONFIRMED
        self._removed_when_full: ItemHistory | None = None

    # Replaying records.

    def put(self, item: ItemHistory) -> None:
        """Replay an ADDX: append the item at the tail."""
        if item.file != self._file:
            self._begin(item.file)
        self._go_on(item.add_ms)
        self._items.append(item)

    def drop_head(self) -> None:
        """Replay a REMOVE: remove the head, if there is one."""
        self._may_be_rewritten = False
        self._removed_when_full = None
        if self._items:
            items = len(self._items)
            item = self._items.popleft()
            self._was_taken(item)
            self._has_gone(item, REMOVED)
            if self._max_items is not None:
                # This server adds the new item and then removes the head, Kestrel removes the head first.
                item.discarded = MAYBE if items > self._max_items else NO
                self._removed_when_full = item if items == self._max_items else None

    def do(self, record: JournalFileRecord, offset: int, item: ItemHistory) -> None:
        """Replay any record, at that offset. `item` is used if the record adds an item. The record needs no data."""
        opcode = record.opcode
        if item.file != self._file:
            self._begin(item.file)
        if opcode in _TAKING_AWAY:
            self._may_be_rewritten = False
        self._counts.find(record, offset)
        self._finishes_as = CONTINUED if opcode is Opcode.CONTINUE and record.restates is None else CONFIRMED
        if opcode in _ADDING or self._finishes_as == CONTINUED:
            self._go_on(record.add_ms)
            self._adding = item
        else:
            self._removed_when_full = None
        replay_record(record, self, 0, offset)
        if self._finishes_as == CONTINUED:
            self._go_on(record.add_ms)  # the finished item was removed at this time

    def _begin(self, file: str) -> None:
        """Start the records of a file. Only the first file of a journal can be a rewrite of earlier files."""
        if self._file is not None:
            self._may_be_rewritten = False
        self._file, self._counts = file, ErrorCounts()

    def _go_on(self, add_ms: int | None) -> None:
        """Set the bounds of recent changes from the time of the next add, and mark a possible discard.

        If it is earlier than the last add, the clock was set back, and the times in between are unknown.
        """
        if self._removed_when_full is not None:
            self._removed_when_full.discarded = MAYBE
            self._removed_when_full = None
        if add_ms is None:
            return
        self._last_ms = add_ms
        if self._may_be_rewritten:
            return
        for item in self._taken:
            item.taken_after_ms, item.taken_before_ms = _bracket(item.taken_after_ms, add_ms)
        for item in self._removed:
            item.removed_after_ms, item.removed_before_ms = _bracket(item.removed_after_ms, add_ms)
        self._settle()

    def _settle(self) -> None:
        self.gone += self._removed
        self._taken, self._removed = [], []

    # The interface that `replay_record` uses.

    def append(self, record: bytes, offset: int) -> None:
        """Append the item that is being added at the tail."""
        item = self._adding
        assert item is not None
        if isinstance(record, AnnouncedRecord):
            item.announced_xid = record.xid
        self._items.append(item)

    def pop_head(self) -> Item | None:
        """Remove the head, if there is one, before it is opened."""
        if not self._items:
            return None
        self._popped = self._items.popleft()
        return Item(b"", 0, 0, xid=self._popped.announced_xid)

    def open_as(self, item: Item, xid: int) -> None:
        """Make the removed head an open read. An open read with the same xid counts as finished."""
        self.finish(xid)
        opened = self._popped
        assert opened is not None
        self._was_taken(opened)
        opened.state, opened.xid, opened.announced_xid = OPEN, xid, 0
        opened.opens += 1
        self._open[xid] = opened
        self.last_xid = xid

    def finish(self, xid: int) -> bool:
        """Finish an open read; return False if there is none with that xid."""
        item = self._open.pop(xid, None)
        if item is None:
            return False
        self._has_gone(item, self._finishes_as)
        return True

    def push_back(self, xid: int, errors: int | None) -> bool:
        """Put an open read back to the head; return False if there is none with that xid.

        `errors` is the item's new error count, or None to add one.
        """
        item = self._open.pop(xid, None)
        if item is None:
            return False
        item.errors = min(item.errors + 1, MOST_ERRORS) if errors is None else errors
        item.state, item.xid = QUEUED, None
        item.aborts += 1
        self._items.appendleft(item)
        return True

    def next_xid(self) -> int:
        """Return the next free xid."""
        xid = self.last_xid
        while True:
            xid = xid + 1 if 0 < xid < LAST_XID else 1
            if xid not in self._open:
                return xid

    def expect_implicit_xid(self) -> None:
        """Do nothing; histories do not need this."""

    def _was_taken(self, item: ItemHistory) -> None:
        if not item.opens:
            item.taken_after_ms = self._last_ms
            self._taken.append(item)

    def _has_gone(self, item: ItemHistory, state: str) -> None:
        item.state, item.xid = state, None
        item.removed_after_ms = self._last_ms
        self._removed.append(item)

    # Results.

    def rest(self) -> Iterator[ItemHistory]:
        """Yield the rest of `gone`, then the remaining items in their order after a restart."""
        self._settle()
        yield from self.gone
        self.gone = []
        opened = (self._open[xid] for xid in sorted(self._open))
        for position, item in enumerate([*opened, *self._items]):
            item.position = position
            yield item


def _bracket(after_ms: int | None, before_ms: int) -> tuple[int | None, int | None]:
    return (after_ms, before_ms) if after_ms is None or after_ms <= before_ms else (None, None)
