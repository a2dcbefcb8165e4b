"""What became of each item of one queue, as the records of its journal tell it. No Spark here.

Records are done in order, as a start of the server does them (`kestrel.journal.replay`), and what leaves the queue is
given out. So no more is in memory than the items that are in the queue at a time, and those that have left it since
the last one was added: of these the next one that is added says by when they left, for records that take an item out
have no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from kestrel.item import Item
from kestrel.journal.announced_record import AnnouncedRecord
from kestrel.journal.error_counts import ERROR_COUNT_OPCODES, ErrorCounts
from kestrel.journal.opcodes import Opcode
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
"""What no rewrite of a file writes."""


class ItemHistory:
    """What became of one item. Times are in ms since the epoch; None where nobody can say."""

    __slots__ = (
        "aborts",
        "add_ms",
        "announced_xid",
        "data",
        "data_bytes",
        "discarded",
        "errors",
        "expiry_ms",
        "file",
        "offset",
        "opens",
        "position",
        "removed_after_ms",
        "removed_before_ms",
        "state",
        "taken_after_ms",
        "taken_before_ms",
        "xid",
    )

    def __init__(
        self, file: str, offset: int, add_ms: int | None, expiry_ms: int | None, data_bytes: int, data: bytes | None
    ) -> None:
        self.file = file
        self.offset = offset
        """Where the record that added it begins in that file."""
        self.add_ms = add_ms
        self.expiry_ms = expiry_ms
        self.data_bytes = data_bytes
        self.data = data
        self.state = QUEUED
        self.opens = 0
        self.aborts = 0
        self.errors = 0
        self.xid: int | None = None
        """Of the open read that it is."""
        self.announced_xid = 0
        """Under which its next opening is, as a release before 2.1 wrote it."""
        self.position: int | None = None
        """Its place in the queue after a restart, if it is still there."""
        self.taken_after_ms: int | None = None
        self.taken_before_ms: int | None = None
        self.removed_after_ms: int | None = None
        self.removed_before_ms: int | None = None
        self.discarded: str | None = None

    @property
    def expired(self) -> str | None:
        """Of one that was removed, whether it had expired by then."""
        if self.state != REMOVED:
            return None
        if self.expiry_ms is None:
            return NO
        if self.removed_after_ms is not None and self.expiry_ms < self.removed_after_ms:
            return YES
        return NO if self.removed_before_ms is not None and self.expiry_ms >= self.removed_before_ms else MAYBE


class QueueHistory:
    """One queue, to which its records are done (`kestrel.journal.replay.RecordTarget`).

    `do` each record in order (for the two of a plain queue there are `put` and `drop_head`), and take what has `gone`
    from time to time; at the end `rest` is what is left and what has gone since. With `max_items`, the queue's limit,
    an item may have been discarded that was removed while the queue had more, or was full and the next record adds one:
    a get in that moment leaves the same records.
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
        """Whether all records so far may be of a rewrite: the first file's, up to the first that takes an item away.
        Then items have the times at which they were added once, and say nothing of when what is before them was."""
        self._last_ms: int | None = None
        """When the last item was added."""
        self._taken: list[ItemHistory] = []
        self._removed: list[ItemHistory] = []
        """Those that were taken and removed since it last went on."""
        self._adding: ItemHistory | None = None
        self._popped: ItemHistory | None = None
        self._finishes_as = CONFIRMED
        self._removed_when_full: ItemHistory | None = None

    # What records say.

    def put(self, item: ItemHistory) -> None:
        """Do an ADDX: that item is at the tail."""
        if item.file != self._file:
            self._begin(item.file)
        self._go_on(item.add_ms)
        self._items.append(item)

    def drop_head(self) -> None:
        """Do a REMOVE: the head, if there is one, has gone."""
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
        """Do any record, which stands at that offset; `item` is the one that it adds, if it adds one. The record itself
        needs no data."""
        opcode = record.opcode
        if item.file != self._file:
            self._begin(item.file)
        if opcode in _TAKING_AWAY:
            self._may_be_rewritten = False
        if opcode in ERROR_COUNT_OPCODES:
            self._counts.find(record, offset)
        self._finishes_as = CONTINUED if opcode is Opcode.CONTINUE and record.restates is None else CONFIRMED
        if opcode in _ADDING or self._finishes_as == CONTINUED:
            self._go_on(record.add_ms)
            self._adding = item
        else:
            self._removed_when_full = None
        replay_record(record, self, 0, offset)
        if self._finishes_as == CONTINUED:
            self._go_on(record.add_ms)  # what it finishes has gone at that moment

    def _begin(self, file: str) -> None:
        """The records are of that file from now on. Only the first one of a journal can be a rewrite, which takes the
        place of all that were before it."""
        if self._file is not None:
            self._may_be_rewritten = False
        self._file, self._counts = file, ErrorCounts()

    def _go_on(self, add_ms: int | None) -> None:
        """The next item was added then. If that is earlier than the last one, the clock was set back in between, and
        nobody knows when what stands between the two was."""
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

    # What `replay_record` asks of a queue.

    def append(self, record: bytes, offset: int) -> None:
        """The item that is being added is at the tail."""
        item = self._adding
        assert item is not None
        if isinstance(record, AnnouncedRecord):
            item.announced_xid = record.xid
        self._items.append(item)

    def pop_head(self) -> Item | None:
        """The head, if there is one, is about to be opened."""
        if not self._items:
            return None
        self._popped = self._items.popleft()
        return Item(b"", 0, 0, xid=self._popped.announced_xid)

    def open_as(self, item: Item, xid: int) -> None:
        """It is an open read. One that is open under that xid counts as finished."""
        self.finish(xid)
        opened = self._popped
        assert opened is not None
        self._was_taken(opened)
        opened.state, opened.xid, opened.announced_xid = OPEN, xid, 0
        opened.opens += 1
        self._open[xid] = opened
        self.last_xid = xid

    def finish(self, xid: int) -> bool:
        """An open read is finished."""
        item = self._open.pop(xid, None)
        if item is None:
            return False
        self._has_gone(item, self._finishes_as)
        return True

    def push_back(self, xid: int, errors: int | None) -> bool:
        """An open read is at the head again."""
        item = self._open.pop(xid, None)
        if item is None:
            return False
        item.errors = min(item.errors + 1, MOST_ERRORS) if errors is None else errors
        item.state, item.xid = QUEUED, None
        item.aborts += 1
        self._items.appendleft(item)
        return True

    def next_xid(self) -> int:
        """The next one that is free."""
        xid = self.last_xid
        while True:
            xid = xid + 1 if 0 < xid < LAST_XID else 1
            if xid not in self._open:
                return xid

    def expect_implicit_xid(self) -> None:
        """Nothing follows from that here."""

    def _was_taken(self, item: ItemHistory) -> None:
        if not item.opens:
            item.taken_after_ms = self._last_ms
            self._taken.append(item)

    def _has_gone(self, item: ItemHistory, state: str) -> None:
        item.state, item.xid = state, None
        item.removed_after_ms = self._last_ms
        self._removed.append(item)

    # What comes of it.

    def rest(self) -> Iterator[ItemHistory]:
        """What has gone and was not taken out of `gone`, then what is left, as it is in line after a restart."""
        self._settle()
        yield from self.gone
        self.gone = []
        opened = (self._open[xid] for xid in sorted(self._open))
        for position, item in enumerate([*opened, *self._items]):
            item.position = position
            yield item


def _bracket(after_ms: int | None, before_ms: int) -> tuple[int | None, int | None]:
    return (after_ms, before_ms) if after_ms is None or after_ms <= before_ms else (None, None)
