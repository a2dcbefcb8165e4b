"""One queue of a `WindowedStorage`: the head of it in memory, and what is recorded until it is in the database."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.item import Item
from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.interfaces import IContinue, IQueueStorage
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit, MemoryShare
from kestrel.storage.window import MAX_ERRORS
from kestrel.storage.windowed.changes import PendingChanges

log = Logger(__name__)

READ_ITEMS: Final = 1024
READ_BYTES: Final = 1 << 20
"""What is read of a queue at once, at most; so little that it is over before long."""

READ_AHEAD_ITEMS: Final = 256
"""So few left in memory, and more is read."""

UNWRITTEN_BYTES: Final = 128 << 20
"""A queue whose commits wait for the database takes no more than that: its next batch has to have an end."""

UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL: Final = 1 << 20
"""The same while the server's memory is full."""

ReadAfter: TypeAlias = Callable[[bytes, int, int, int], "Deferred[Sequence[StoredItem]]"]
"""`kestrel.storage.database.IDatabase.read_after`."""


@implementer(IQueueStorage, IContinue)
class WindowedQueue:
    """A queue whose items are in a database (`IQueueStorage`, `IContinue`).

    From its head on: `_front`, what was put back; `_window`, items as they were put, up to position `_loaded_to`; then
    those that only the database has, up to `_safe_to`; then those that it does not have yet, up to `_last`, which are
    in memory in any case, as they wait to be written.
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
        """Raises the `StorageError` why the storage takes no item of so many bytes now, if there is one."""
        self._limit = limit
        self._read_after = read_after
        self._front: deque[StoredItem] = deque()
        self._window: deque[StoredItem] = deque()
        self.mem_bytes = 0
        self._open: dict[int, StoredItem] = {}
        self._open_bytes = 0
        self._last_xid = 0
        self._outstanding: set[int] = set()
        """Positions of items that have left the window and are not done with: open reads, and what is in front."""
        self._outstanding_heap: list[int] = []
        """The same, lowest first, and more: those that are done with leave it late."""
        self._floor = stored.floor
        self._loaded_to = stored.floor
        self._safe_to = self._last = stored.last
        self._pending = PendingChanges(is_new)
        self._in_flight: PendingChanges | None = None
        """What is being written."""
        self._reading = False
        self._unreadable: str | None = None
        """Why the last read failed; None if it did not."""
        self._filling: Deferred[None] | None = None

    # Figures.

    @property
    def mem_items(self) -> int:
        """How many items are in memory."""
        return len(self._front) + len(self._window)

    @property
    def open_reads(self) -> int:
        """How many open reads there are."""
        return len(self._open)

    @property
    def stats(self) -> Mapping[str, int]:
        """What every backend tells."""
        return {"logsize": self.disk_bytes, "journal_rewrites": 0, "journal_rotations": 0}

    def check(self) -> None:
        """Raise `QueueFailed` if this object is dead."""
        if self.failure is not None:
            raise QueueFailed(self.failure)

    # Items in.

    def check_append(self) -> None:
        """Raise the `StorageError` why it takes no item now, if there is one."""
        self.check()
        if self._unwritten_bytes > UNWRITTEN_BYTES:
            raise StorageRefused("the database is slow, and too much waits for it")
        if self._limit.is_reached and self._unwritten_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL:
            raise StorageRefused("the server's memory is full, and the database is slow")

    def append(self, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """One more item."""
        self._last += 1
        item = StoredItem(self._last, data, add_ms, expiry_ms, 0)
        self._pending.put(item)
        self.items += 1
        self.bytes += len(data)
        if self._loaded_to == self._last - 1 and self._has_room:
            self._load(item)
        if self._limit.most_bytes is not None:  # the commit may be a while away
            self._report_memory()

    def continue_(self, xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """End that open read and append an item."""
        self.check_put(len(data))
        self.check_append()
        self.confirm([xid])
        self.append(data, add_ms, expiry_ms)

    # Items out.

    def peek(self) -> Item | None:
        """The head, if it is in memory."""
        self.check()
        if self._front:
            return _item(self._front[0])
        return _item(self._window[0]) if self._window else None

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head, if it is in memory."""
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
            # One is held, and all behind it are done.
            if len(self._outstanding_heap) > 2 * len(self._outstanding) + READ_ITEMS:
                self._outstanding_heap = sorted(self._outstanding)
        return self._last_xid

    def _remove_item(self, position: int) -> None:
        self._outstanding.discard(position)
        self._pending.remove(position)

    # Open reads.

    def is_open(self, xid: int) -> bool:
        """Whether that is an open read."""
        return xid in self._open

    def _close_open_read(self, xid: int) -> StoredItem | None:
        stored = self._open.pop(xid, None)
        if stored is not None:
            self._open_bytes -= len(stored.data)
        return stored

    def confirm(self, xids: Sequence[int]) -> int:
        """These are done."""
        self.check()
        closed = [stored for stored in map(self._close_open_read, xids) if stored is not None]
        for stored in closed:
            self._remove_item(stored.position)
        return len(closed)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """These are at the head again."""
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
        """Only open reads stay."""
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
        """Whether the window takes an item more; one it always takes."""
        if not self._window:
            return True
        return self.mem_bytes < self.settings.max_memory_size_bytes and not self._limit.is_reached

    def _load(self, item: StoredItem) -> None:
        self._window.append(item)
        self.mem_bytes += len(item.data)
        self._loaded_to = item.position

    def fill(self) -> Deferred[None] | None:
        """Bring the head into memory."""
        self.check()
        if self._front or self._window or self._loaded_to == self._last:
            return None
        if self._loaded_to >= self._safe_to:
            self._load_unwritten()
            return None
        self._filling = Deferred()
        filling = self._filling
        self._read_on()
        return filling

    def _load_unwritten(self) -> None:
        """Items that the database does not have yet are at hand; no more than are read of it at once."""
        for position in range(self._loaded_to + 1, min(self._last, self._loaded_to + READ_ITEMS) + 1):
            if not self._has_room:
                return
            item = self._pending.puts.get(position)
            if item is None and self._in_flight is not None:
                item = self._in_flight.puts.get(position)
            if item is None:
                return  # it has been written since
            self._load(item)

    def _read_ahead(self) -> None:
        if self._loaded_to >= self._safe_to:
            if not self._window:
                self._load_unwritten()
        elif self._has_room and not self._limit.is_reached:
            self._read_on()

    def _read_on(self) -> None:
        """Read what stands behind the window."""
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
        self._unreadable = None
        if self.failure is None:
            for item in items:
                if item.position > self._loaded_to:  # else it was cleared meanwhile
                    self._load(item)
            if not items:
                self._loaded_to = max(self._loaded_to, safe_to)
            if self._loaded_to >= self._safe_to and not self._window:
                self._load_unwritten()
            self._correct_count()
            self._report_memory()
        self._fire_filling(None)

    def _correct_count(self) -> None:
        """When all is in memory it is known how much there is, whatever the database said before."""
        if self._loaded_to == self._last and self.items != self.mem_items:
            log.error(
                "Queue {name}: there are {items} items where the database said {said}",
                name=self.name,
                items=self.mem_items,
                said=self.items,
            )
            self.items, self.bytes = self.mem_items, self.mem_bytes

    def _read_failed(self, failure: Failure) -> None:
        self._reading = False
        reason = reason_of(error_of(failure))
        if reason != self._unreadable:  # the next get tries again, and there may be many
            self._unreadable = reason
            log.error("Queue {name} cannot be read: {reason}", name=self.name, reason=reason)
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
        """What was recorded since the last time, to be written now; None if that is nothing."""
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
        """The position of the first item that is not done with."""
        heap = self._outstanding_heap
        while heap and heap[0] not in self._outstanding:
            heappop(heap)
        rest = self._window[0].position if self._window else self._loaded_to + 1
        return min(heap[0], rest) if heap else rest

    def written(self, changes: QueueChanges) -> None:
        """What was sealed last is in the database."""
        self._in_flight = None
        self._report_memory()
        self._safe_to = changes.queue.last
        self.disk_bytes = changes.queue.bytes

    def deletion(self) -> QueueChanges:
        """What makes the database forget it."""
        return QueueChanges(StoredQueue(self.name, 0, 0, self._last, self._last), False, True, (), (), {})

    def kill(self, reason: str) -> None:
        """It is dead from now on, and has nothing in memory."""
        if self.failure is None:
            self.failure = reason
        self._front.clear()
        self._window.clear()
        self._open.clear()
        self._pending = PendingChanges()
        self._in_flight = None
        self.memory.set_bytes(0)

    def end_fill(self) -> None:
        """Who waits for the head waits no longer, whatever becomes of what is being read."""
        self._fire_filling(None)

    @property
    def _unwritten_bytes(self) -> int:
        pending_changes = (self._pending,) if self._in_flight is None else (self._pending, self._in_flight)
        return sum(pending.bytes + ITEM_BYTES * len(pending.puts) for pending in pending_changes)

    def _report_memory(self) -> None:
        held = self.mem_bytes + self._open_bytes + ITEM_BYTES * (self.mem_items + len(self._open))
        unwritten = self._unwritten_bytes
        all_is_loaded = self._loaded_to == self._last  # then what is not written yet is held as well, or was taken
        self.memory.set_bytes(max(held, unwritten) if all_is_loaded else held + unwritten)


def _item(stored: StoredItem, xid: int = 0) -> Item:
    item = Item(stored.data, stored.add_ms, stored.expiry_ms, stored.errors, xid)
    item.id = stored.position
    return item
