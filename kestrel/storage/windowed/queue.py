"""A queue of a `WindowedStorage`: its head in memory, and its changes until they are in the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.escaping import show_name
from kestrel.item import Item
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.interfaces import IBrowsing, IContinue, IQueueStorage
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit, MemoryShare
from kestrel.storage.window import MAX_ERRORS
from kestrel.storage.windowed.writer import PendingChanges

log = Logger(__name__)

READ_ITEMS: Final = 1024
READ_BYTES: Final = 1 << 20
"""Limits of one read of a queue, so that it ends soon."""

READ_AHEAD_ITEMS: Final = 256
"""When fewer items than this are left in the window, more are read."""

UNWRITTEN_BYTES: Final = 128 << 20
"""Limit of a queue's unwritten changes. Above it, puts are refused, so that its next batch does not grow without end.
"""

UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL: Final = 1 << 20
"""Limit of a queue's unwritten changes while the server's memory is full."""

ReadAfter: TypeAlias = Callable[[bytes, int, int, int], "Deferred[Sequence[StoredItem]]"]
"""The type of `kestrel.storage.database.IDatabase.read_after`."""


@implementer(IQueueStorage, IContinue, IBrowsing)
class WindowedQueue:
    """A queue whose items are in a database (`IQueueStorage`, `IContinue`, `IBrowsing`).

    Its items, from the head on, are:

    - `_front`: returned items
    - `_window`: items in put order, up to position `_loaded_to`
    - items that only the database has, up to position `_safe_to`
    - items that the database does not have yet, up to position `_last`, which wait in memory to be written
    """

    def __init__(
        self,
        stored: StoredQueue,
        is_new: bool,
        settings: QueueSettings,
        read_after: ReadAfter,
        check_put: Callable[[int], None],
        limit: MemoryLimit,
    ) -> None:
        self.name = stored.name
        self.settings = settings
        self.items = self.replayed_items = stored.items
        self.bytes = self.disk_bytes = stored.bytes
        self.failure: str | None = None
        self.is_deleted = False
        self.memory = MemoryShare(limit)
        self.check_put = check_put
        """Raises a `StorageError` if the storage refuses an item of that many bytes now."""
        self._limit = limit
        self._read_after = read_after
        self._front: deque[StoredItem] = deque()
        self._window: deque[StoredItem] = deque()
        self.mem_bytes = 0
        self._open: dict[int, StoredItem] = {}
        self._open_bytes = 0
        self._last_xid = 0
        self._outstanding: set[int] = set()
        """Positions of unfinished items that have left the window: open reads and returned items."""
        self._outstanding_heap: list[int] = []
        """A heap of `_outstanding`. Finished positions are removed later."""
        self._floor = stored.floor
        self._loaded_to = stored.floor
        self._safe_to = self._last = stored.last
        self._pending = PendingChanges(is_new)
        self._in_flight: PendingChanges | None = None
        """The changes that are being written."""
        self._reading = False
        self._read_error: str | None = None
        """Reason why the last read failed, or None."""
        self._filling: Deferred[None] | None = None

    # Statistics.

    @property
    def mem_items(self) -> int:
        return len(self._front) + len(self._window)

    @property
    def open_reads(self) -> int:
        return len(self._open)

    @property
    def stats(self) -> Mapping[str, int]:
        return {"logsize": self.disk_bytes, "journal_rewrites": 0, "journal_rotations": 0}

    def check(self) -> None:
        """Raise `QueueFailed` if this object has failed."""
        if self.failure is not None:
            raise QueueFailed(self.failure)

    # Puts.

    def check_append(self) -> None:
        """Raise a `StorageError` if this queue accepts no item now."""
        self.check()
        if self._unwritten_bytes > UNWRITTEN_BYTES:
            raise StorageRefused("the database is slow, and too much waits for it")
        if self._limit.is_reached and self._unwritten_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL:
            raise StorageRefused("the server's memory is full, and the database is slow")

    def append(self, data: bytes, add_ms: int, expiry_ms: int) -> None:
        self._last += 1
        item = StoredItem(self._last, data, add_ms, expiry_ms, 0)
        self._pending.put(item)
        self.items += 1
        self.bytes += len(data)
        if self._loaded_to == self._last - 1 and self._has_room:
            self._load(item)
        if self._limit.most_bytes is not None:  # the next commit, which reports it too, may be some time away
            self._report_memory()

    def continue_(self, xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        self.check_put(len(data))
        self.check_append()
        self.confirm([xid])
        self.append(data, add_ms, expiry_ms)

    # Gets.

    def peek(self) -> Item | None:
        self.check()
        if self._front:
            return _item(self._front[0])
        return _item(self._window[0]) if self._window else None

    def browse(self, first: int, count: int) -> list[Item]:
        self.check()
        return [_item(stored) for stored in islice(chain(self._front, self._window), first, first + count)]

    def take(self, opened: bool) -> Item | None:
        self.check()
        if self._front:
            stored = self._front.popleft()
        elif self._window:
            stored = self._window.popleft()
        else:
            return None
        self.items -= 1
        self.bytes -= len(stored.data)
        self.mem_bytes -= len(stored.data)
        xid = self._open_as_next(stored) if opened else 0
        if not opened:
            self._remove_item(stored.position)
        if len(self._window) < READ_AHEAD_ITEMS:
            self._read_ahead()
        return _item(stored, xid)

    def _open_as_next(self, stored: StoredItem) -> int:
        self._last_xid += 1
        self._open[self._last_xid] = stored
        self._open_bytes += len(stored.data)
        if stored.position not in self._outstanding:
            self._outstanding.add(stored.position)
            heappush(self._outstanding_heap, stored.position)
            # An open read at the top keeps finished positions behind it in the heap.
            if len(self._outstanding_heap) > 2 * len(self._outstanding) + READ_ITEMS:
                self._outstanding_heap = sorted(self._outstanding)
        return self._last_xid

    def _remove_item(self, position: int) -> None:
        self._outstanding.discard(position)
        self._pending.remove(position)

    # Open reads.

    def is_open(self, xid: int) -> bool:
        return xid in self._open

    def _close_open_read(self, xid: int) -> StoredItem | None:
        stored = self._open.pop(xid, None)
        if stored is not None:
            self._open_bytes -= len(stored.data)
        return stored

    def confirm(self, xids: Sequence[int]) -> int:
        self.check()
        closed = [stored for stored in map(self._close_open_read, xids) if stored is not None]
        for stored in closed:
            self._remove_item(stored.position)
        return len(closed)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        self.check()
        for stored in map(self._close_open_read, reversed(xids)):
            if stored is None:
                continue
            if failed and stored.errors < MAX_ERRORS:
                stored = stored._replace(errors=stored.errors + 1)
                self._pending.fail(stored)
            self._front.appendleft(stored)
            self.items += 1
            self.bytes += len(stored.data)
            self.mem_bytes += len(stored.data)

    def clear(self) -> None:
        self.check()
        kept = sorted(stored.position for stored in self._open.values())
        self._pending.remove_all_but(kept, self._floor + 1, self._last)
        self._outstanding = set(kept)
        self._outstanding_heap = kept
        self._front.clear()
        self._window.clear()
        self.items = self.bytes = self.mem_bytes = 0
        self._loaded_to = self._last

    # The window.

    @property
    def _has_room(self) -> bool:
        """Whether the window may get another item. An empty window always may."""
        if not self._window:
            return True
        return self.mem_bytes < self.settings.max_memory_size_bytes and not self._limit.is_reached

    def _load(self, item: StoredItem) -> None:
        self._window.append(item)
        self.mem_bytes += len(item.data)
        self._loaded_to = item.position

    def fill(self) -> Deferred[None] | None:
        self.check()
        if self._front or self._window or self._loaded_to == self._last:
            return None
        if self._loaded_to >= self._safe_to:
            self._load_unwritten()
            return None
        self._filling = Deferred()
        filling = self._filling
        self._read_more()
        return filling

    def _load_unwritten(self) -> None:
        """Add unwritten items to the window, at most `READ_ITEMS` of them."""
        for position in range(self._loaded_to + 1, min(self._last, self._loaded_to + READ_ITEMS) + 1):
            if not self._has_room:
                return
            item = self._pending.puts.get(position)
            if item is None and self._in_flight is not None:
                item = self._in_flight.puts.get(position)
            if item is None:
                return  # it has been written, and is read from the database
            self._load(item)

    def _read_ahead(self) -> None:
        if self._loaded_to >= self._safe_to:
            if not self._window:
                self._load_unwritten()
        elif self._has_room and not self._limit.is_reached:
            self._read_more()

    def _read_more(self) -> None:
        """Read the items behind the window, unless a read is pending."""
        if self._reading:
            return
        self._reading = True
        room = self.settings.max_memory_size_bytes - self.mem_bytes
        count, most = (1, 1) if self._limit.is_reached else (READ_ITEMS, max(1, min(READ_BYTES, room)))
        reading = maybeDeferred(self._read_after, self.name, self._loaded_to, count, most)
        reading.addCallback(self._items_read, self._safe_to)
        reading.addErrback(self._read_failed)

    def _items_read(self, items: Sequence[StoredItem], safe_to: int) -> None:
        self._reading = False
        self._read_error = None
        if self.failure is None:
            for item in items:
                if item.position > self._loaded_to:  # false if it was cleared during the read
                    self._load(item)
            if not items:
                self._loaded_to = max(self._loaded_to, safe_to)
            if self._loaded_to >= self._safe_to and not self._window:
                self._load_unwritten()
            self._correct_count()
            self._report_memory()
        self._fire_filling(None)

    def _correct_count(self) -> None:
        """Correct the counts if all items are in memory and the database reported another number."""
        if self._loaded_to == self._last and self.items != self.mem_items:
            log.error(
                "Queue {name} has {items} items, but the database reported {said}",
                name=show_name(self.name),
                items=self.mem_items,
                said=self.items,
            )
            self.items, self.bytes = self.mem_items, self.mem_bytes

    def _read_failed(self, failure: Failure) -> None:
        self._reading = False
        reason = reason_of(error_of(failure))
        if reason != self._read_error:  # every get tries again, so log each reason once
            self._read_error = reason
            log.error("Queue {name} cannot be read: {reason}", name=show_name(self.name), reason=reason)
        self._fire_filling(Failure(QueueFailed("the queue cannot be read from the database")))

    def _fire_filling(self, result: Failure | None) -> None:
        filling, self._filling = self._filling, None
        if filling is None:
            return
        if result is None:
            filling.callback(None)
        else:
            filling.errback(result)

    # Commits.

    def seal(self) -> QueueChanges | None:
        """Return the changes since the last call, to be written now, or None if there are none."""
        self._report_memory()
        pending = self._pending
        if not pending:
            return None
        before, self._floor = self._floor, self._lowest_position() - 1
        items, size = self.items + len(self._open), self.bytes + self._open_bytes
        changes = pending.seal(before, StoredQueue(self.name, items, size, self._floor, self._last))
        self._in_flight, self._pending = pending, PendingChanges()
        return changes

    def _lowest_position(self) -> int:
        """Return the lowest position of an unfinished item, or the next position if there is none."""
        heap = self._outstanding_heap
        while heap and heap[0] not in self._outstanding:
            heappop(heap)
        rest = self._window[0].position if self._window else self._loaded_to + 1
        return min(heap[0], rest) if heap else rest

    def written(self, changes: QueueChanges) -> None:
        """Record that the last sealed changes are in the database."""
        self._in_flight = None
        self._report_memory()
        self._safe_to = changes.queue.last
        self.disk_bytes = changes.queue.bytes

    def deletion(self) -> QueueChanges:
        """Return the change that deletes this queue from the database."""
        return QueueChanges(StoredQueue(self.name, 0, 0, self._last, self._last), False, True, (), (), {})

    def kill(self, reason: str) -> None:
        """Make this object fail for that reason, and drop its items from memory."""
        if self.failure is None:
            self.failure = reason
        self._front.clear()
        self._window.clear()
        self._open.clear()
        self._pending = PendingChanges()
        self._in_flight = None
        self.memory.set_bytes(0)

    def end_fill(self) -> None:
        """Fire the Deferred of a pending `fill`. The pending read continues, and its result is ignored."""
        self._fire_filling(None)

    @property
    def _unwritten_bytes(self) -> int:
        pending_changes = (self._pending,) if self._in_flight is None else (self._pending, self._in_flight)
        return sum(pending.bytes + ITEM_BYTES * len(pending.puts) for pending in pending_changes)

    def _report_memory(self) -> None:
        loaded_bytes = self.mem_bytes + self._open_bytes + ITEM_BYTES * (self.mem_items + len(self._open))
        unwritten_bytes = self._unwritten_bytes
        # If all is loaded, unwritten items are in the window too, or were taken.
        all_is_loaded = self._loaded_to == self._last
        self.memory.set_bytes(max(loaded_bytes, unwritten_bytes) if all_is_loaded else loaded_bytes + unwritten_bytes)


def _item(stored: StoredItem, xid: int = 0) -> Item:
    item = Item(stored.data, stored.add_ms, stored.expiry_ms, stored.errors, xid)
    item.id = stored.position
    return item
