"""The part of a queue that is in memory: its items in order, and its open reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mypy_extensions import mypyc_attr

from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.journal.records import ADDX_HEADER_BYTES, decode_item
from kestrel.storage.chunked_deque import ChunkedDeque
from kestrel.storage.total_memory import ITEM_BYTES

MAX_XID = (1 << 31) - 1
MAX_ERRORS = (1 << 31) - 1
"""An item's errors are counted up to there: what a record of the journal can say."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Window:
    """Items as the records they came in, decoded when they reach the head.

    `_front` holds the few that are decoded, because they were peeked at or put back; `_records` all behind
    them. A backend appends, and may record what is done here by extending these methods.
    """

    def __init__(self) -> None:
        self._front: deque[Item] = deque()
        self._records = ChunkedDeque()
        self._open: dict[int, Item] = {}
        self.free: Callable[[ChunkedDeque], object] = ChunkedDeque.free
        """Frees the memory of many records."""
        self._first_id = 0
        """The id of the first of `_records`; those behind it follow."""
        self.open_bytes = 0
        """The data of the open reads, in bytes."""
        self.open_with_errors = 0
        """How many open reads have come back failed before."""
        self._front_with_errors = 0
        self._front_behind_errors = 0
        """How many of the front stand behind the last of those."""
        self.last_xid = 0
        """The number of the read that was opened last."""
        self.items = 0
        self.bytes = 0
        self.failure: str | None = None
        """Why this object is dead, or None while it lives."""

    def check(self) -> None:
        """Raise `QueueFailed` if this object is dead."""
        if self.failure is not None:
            raise QueueFailed(self.failure)

    # Changes, one by one: what a replay does.

    def append(self, record: bytes) -> None:
        """One more item at the tail, as its ADDX record."""
        self._records.append(record)
        self.items += 1
        self.bytes += len(record) - ADDX_HEADER_BYTES

    def pop_head(self) -> Item | None:
        """Remove and return the head."""
        if self._front:
            item = self._pop_front()
        else:
            record = self._records.popleft()
            if record is None:
                return None
            item = self._decode(record)
        self.items -= 1
        self.bytes -= len(item.data)
        return item

    def _pop_front(self) -> Item:
        item = self._front.popleft()
        self._front_with_errors -= item.errors > 0
        return item

    def _decode(self, record: bytes) -> Item:
        """The item of what was the first of `_records`."""
        item = decode_item(record)
        item.id = self._first_id
        self._first_id += 1
        return item

    def drop_head(self) -> None:
        """Remove the head, if there is one."""
        if self._front:
            self.bytes -= len(self._pop_front().data)
        else:
            record = self._records.popleft()
            if record is None:
                return
            self.bytes -= len(record) - ADDX_HEADER_BYTES
            self._first_id += 1
        self.items -= 1

    def open_as(self, item: Item, xid: int) -> None:
        """An item that was popped is an open read under that number; one that had it already is done with."""
        self.finish(xid)
        item.xid = self.last_xid = xid
        self._open[xid] = item
        self.open_bytes += len(item.data)
        self.open_with_errors += item.errors > 0

    def finish(self, xid: int) -> bool:
        """That open read is done with. False when it is not open."""
        item = self._open.pop(xid, None)
        if item is None:
            return False
        self.open_bytes -= len(item.data)
        self.open_with_errors -= item.errors > 0
        return True

    def push_back(self, xid: int, errors: int | None) -> bool:
        """That open read is the head again, with so many errors, or None with one more. False when it is not open."""
        item = self._open.get(xid)
        if item is None:
            return False
        self.finish(xid)
        item.xid = 0
        item.errors = min(item.errors + 1, MAX_ERRORS) if errors is None else errors
        if item.errors:
            if not self._front_with_errors:
                self._front_behind_errors = len(self._front)
            self._front_with_errors += 1
        self._front.appendleft(item)
        self.items += 1
        self.bytes += len(item.data)
        return True

    @property
    def front_to_last_with_errors(self) -> int:
        """How many items of the front there are up to the last one that has errors."""
        return len(self._front) - self._front_behind_errors if self._front_with_errors else 0

    # What a server asks: `IQueueStorage`.

    def peek(self) -> Item | None:
        """The head item."""
        if self.failure is not None:
            self.check()
        if not self._front:
            record = self._records.popleft()
            if record is None:
                return None
            self._front.append(self._decode(record))
        return self._front[0]

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head; as an open read when `opened`."""
        if self.failure is not None:
            self.check()
        item = self.pop_head()
        if opened and item is not None:
            self.open_as(item, self.next_xid())
        return item

    def next_xid(self) -> int:
        """The number for the next open read."""
        xid = self.last_xid + 1
        while xid in self._open or not 0 < xid <= MAX_XID:
            xid = xid + 1 if 0 < xid < MAX_XID else 1
        return xid

    @property
    def open_reads(self) -> int:
        """How many open reads there are."""
        return len(self._open)

    def open_xids(self) -> list[int]:
        """The numbers of the open reads, lowest first."""
        return sorted(self._open)

    def is_open(self, xid: int) -> bool:
        """Whether that is an open read now."""
        return xid in self._open

    def confirm(self, xids: Sequence[int]) -> int:
        """End open reads; returns how many of them were open."""
        self.check()
        return sum(self.finish(xid) for xid in xids)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head; xids[0] is the next one taken."""
        self.check()
        for xid in reversed(xids):
            item = self._open.get(xid)
            if item is not None:
                self.push_back(xid, None if failed else item.errors)

    def clear(self) -> None:
        """Drop every item that is not an open read."""
        self.check()
        self._first_id += len(self._records)
        self.release_items()
        self.items = self.bytes = 0

    def release_items(self) -> None:
        """The items in memory are needed no more."""
        self._front = deque()
        self._front_with_errors = 0
        self.free(self._records)
        self._records = ChunkedDeque()

    @property
    def memory_bytes(self) -> int:
        """The memory that its items take."""
        return self.bytes + self.open_bytes + ITEM_BYTES * (self.items + len(self._open))

    @property
    def has_head(self) -> bool:
        """Whether the head is in memory."""
        return bool(self._front or self._records)

    @property
    def mem_items(self) -> int:
        """How many items are in memory."""
        return len(self._front) + len(self._records)
