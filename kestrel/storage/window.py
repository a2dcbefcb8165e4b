"""The part of a queue that is in memory: its first items in order, and its open reads."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Final

from mypy_extensions import mypyc_attr
from zope.interface import classImplements

from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.journal.records import ADDX_HEADER_BYTES, ItemDecoder, decode_item
from kestrel.storage.interfaces import IBrowsing
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit, MemoryShare

MAX_XID = (1 << 31) - 1
MAX_ERRORS = (1 << 31) - 1
"""Maximum error count of an item, and of the field in a journal record."""


CHUNK_RECORDS: Final = 1024


class ChunkedDeque:
    """A first in, first out queue of records.

    A full chunk is a tuple. The garbage collector stops tracking a tuple once it has seen that it holds only bytes.
    With two million records in one deque, each full collection would take 40 ms. For the same reason `first` copies in
    chunks, and `free` frees chunk by chunk.
    """

    __slots__ = ("_chunk_records", "_chunks", "_head", "_tail")

    def __init__(self, chunk: int = CHUNK_RECORDS) -> None:
        self._chunk_records = chunk
        self._head: list[bytes] = []
        """The remaining records of the first chunk, in reverse order."""
        self._chunks: deque[tuple[bytes, ...]] = deque()
        self._tail: list[bytes] = []

    def append(self, record: bytes) -> None:
        tail = self._tail
        tail.append(record)
        if len(tail) >= self._chunk_records:
            self._chunks.append(tuple(tail))
            self._tail = []

    def extend(self, records: list[bytes]) -> None:
        """Append all records. If they fill the last chunk, it becomes one chunk, whatever its length."""
        self._tail += records
        if len(self._tail) >= self._chunk_records:
            self._chunks.append(tuple(self._tail))
            self._tail = []
            # The collector looks at this chunk now and stops tracking it. Later it would look at hundreds at once.
            gc.collect(0)

    def popleft(self) -> bytes | None:
        """Remove and return the first record, or return None if there is none."""
        if self._head:
            return self._head.pop()
        if self._chunks:
            self._head = list(self._chunks.popleft())
        elif len(self._tail) <= 1:
            return self._tail.pop() if self._tail else None
        else:
            self._head, self._tail = self._tail, []
        self._head.reverse()
        return self._head.pop()

    def first(self, count: int) -> list[tuple[bytes, ...]]:
        """Return the first `count` records, or all if there are fewer, in chunks."""
        chunks: list[tuple[bytes, ...]] = []
        for chunk in chain((tuple(reversed(self._head)),), self._chunks, (tuple(self._tail),)):
            if count <= 0:
                break
            chunks.append(chunk[:count])
            count -= len(chunk)
        return chunks

    def part(self, first: int, count: int) -> list[bytes]:
        """Return up to `count` records from position `first` on. This takes time for each chunk before them."""
        found: list[bytes] = []
        for chunk in chain((tuple(reversed(self._head)),), self._chunks, (tuple(self._tail),)):
            if count <= 0:
                break
            some = chunk[first : first + count]
            found += some
            count -= len(some)
            first = max(0, first - len(chunk))
        return found

    def free(self) -> None:
        """Free the full chunks one by one. In a thread, this lets other threads run between two chunks."""
        while self._chunks:
            self._chunks.pop()

    def __len__(self) -> int:
        """Return the number of records. This takes time for each chunk."""
        return len(self._head) + sum(map(len, self._chunks)) + len(self._tail)

    def __bool__(self) -> bool:
        return bool(self._head or self._chunks or self._tail)


@mypyc_attr(allow_interpreted_subclasses=True)
class Window:
    """Items in memory, stored as the records that they were put as, and decoded when they reach the head.

    `_front` holds the few decoded items, which were peeked at or returned. `_records` holds all items behind them. A
    storage appends records, and may override these methods to record the changes. Later items may be *behind* the
    window: they are counted, but only on disk.
    """

    def __init__(self, memory_limit: MemoryLimit | None = None) -> None:
        self._memory_limit = memory_limit or MemoryLimit()
        self.memory = MemoryShare(self._memory_limit)
        self._front: deque[Item] = deque()
        self._records = ChunkedDeque()
        self._decoder = ItemDecoder()
        self._open: dict[int, Item] = {}
        self.free: Callable[[ChunkedDeque], object] = ChunkedDeque.free
        """Frees the memory of many records."""
        self._first_id = 0
        """The id of the first of `_records`. The ids of the others follow without gaps."""
        self.open_bytes = 0
        """Bytes of data of the open reads."""
        self.open_with_errors = 0
        """Number of open reads whose item has errors."""
        self._front_with_errors = 0
        self._front_behind_errors = 0
        """Number of items in `_front` behind the last one that has errors."""
        self.last_xid = 0
        """The xid of the read that was opened last."""
        self.items = 0
        self.bytes = 0
        self.behind_items = 0
        self.behind_bytes = 0
        self._pending_bytes = 0
        """Bytes of the records that are not written yet, if the queue holds them itself."""
        self.failure: str | None = None
        """Reason why this object failed, or None."""

    def check(self) -> None:
        """Raise `QueueFailed` if this object has failed."""
        if self.failure is not None:
            raise QueueFailed(self.failure)

    # Single changes, as a replay applies them.

    def append(self, record: bytes) -> None:
        """Append an item, given as its ADDX record."""
        self._records.append(record)
        self.items += 1
        self.bytes += len(record) - ADDX_HEADER_BYTES

    def pop_head(self) -> Item | None:
        """Remove and return the head, or return None if no item is in memory."""
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
        """Decode a record that was just taken from the front of `_records`."""
        item = self._decoder.decode(record)
        item.id = self._first_id
        self._first_id += 1
        return item

    def drop_head(self) -> None:
        """Remove the head, if there is one, without decoding it."""
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
        """Make a popped item an open read with that xid. An open read that has the xid already ends."""
        if xid in self._open:
            self.finish(xid)
        item.xid = self.last_xid = xid
        self._open[xid] = item
        self.open_bytes += len(item.data)
        self.open_with_errors += item.errors > 0

    def finish(self, xid: int) -> bool:
        """End an open read, and drop its item. Return False if it is not open."""
        item = self._open.pop(xid, None)
        if item is None:
            return False
        self.open_bytes -= len(item.data)
        self.open_with_errors -= item.errors > 0
        return True

    def push_back(self, xid: int, errors: int | None) -> bool:
        """Return an open read to the head. Return False if it is not open.

        `errors` is the item's new error count, or None to add one.
        """
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
        """Number of items in `_front` up to the last one that has errors."""
        return len(self._front) - self._front_behind_errors if self._front_with_errors else 0

    # IQueueStorage.

    def peek(self) -> Item | None:
        if self.failure is not None:
            self.check()
        if not self._front:
            record = self._records.popleft()
            if record is None:
                return None
            self._front.append(self._decode(record))
        return self._front[0]

    def browse(self, first: int, count: int) -> list[Item]:
        """Return up to `count` of the items in memory, from position `first` on (`IBrowsing`)."""
        self.check()
        found = list(islice(self._front, first, first + count))
        records = self._records.part(max(0, first - len(self._front)), count - len(found))
        return found + [self.decode(record) for record in records]

    def decode(self, record: bytes) -> Item:
        """Decode a record that stays in `_records`."""
        return decode_item(record)

    def take(self, opened: bool) -> Item | None:
        if self.failure is not None:
            self.check()
        item = self.pop_head()
        if opened and item is not None:
            self.open_as(item, self.next_xid())
        return item

    def next_xid(self) -> int:
        """Return an unused xid for the next open read."""
        xid = self.last_xid + 1
        while xid in self._open or not 0 < xid <= MAX_XID:
            xid = xid + 1 if 0 < xid < MAX_XID else 1
        return xid

    @property
    def open_reads(self) -> int:
        return len(self._open)

    def open_xids(self) -> list[int]:
        """Return the xids of the open reads, lowest first."""
        return sorted(self._open)

    def is_open(self, xid: int) -> bool:
        return xid in self._open

    def confirm(self, xids: Sequence[int]) -> int:
        self.check()
        return sum(self.finish(xid) for xid in xids)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        self.check()
        for xid in reversed(xids):
            item = self._open.get(xid)
            if item is not None:
                self.push_back(xid, None if failed else item.errors)

    def clear(self) -> None:
        self.check()
        self._first_id += len(self._records)
        self.release_items()
        self.items = self.bytes = 0

    def release_items(self) -> None:
        """Free the items in memory, without changing the counts."""
        self._front = deque()
        self._front_with_errors = 0
        self.free(self._records)
        self._records = ChunkedDeque()

    @property
    def mem_bytes(self) -> int:
        return self.bytes - self.behind_bytes

    @property
    def mem_items(self) -> int:
        return self.items - self.behind_items

    def report_memory(self) -> None:
        """Report the memory of the items in memory, the open reads and the unwritten records to the memory limit.

        Runs on the reactor thread or before the storage has started.
        """
        # Without the properties above, because each commit calls this.
        item_count = self.items - self.behind_items + len(self._open)
        data_bytes = self.bytes - self.behind_bytes + self.open_bytes
        # Without items behind the window, the unwritten records share the memory of the items.
        unwritten_bytes = self._pending_bytes if self.behind_items else 0
        self.memory.set_bytes(data_bytes + ITEM_BYTES * item_count + unwritten_bytes)

    @property
    def has_head(self) -> bool:
        """Whether the head is in memory."""
        return bool(self._front or self._records)


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(Window, IBrowsing)
