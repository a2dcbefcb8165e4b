"""A reader of a journaled queue: libkestrel's rules for a `kestrel.queues.queue.Queue`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.errors import QueueFailed, StorageError
from kestrel.item import Item
from kestrel.library.handle import READ_WAS_RETURNED, QueueHandle
from kestrel.library.journaled_config import JournaledQueueConfig, QueueItem
from kestrel.queues.context import QueueContext
from kestrel.queues.counters import QueueCounters
from kestrel.queues.limits import MAX_SWEPT_PER_SLICE, QueueLimits
from kestrel.queues.queue import Queue
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.scroll.storage import ScrollStorage

log = Logger(__name__)


class ReaderLimits(QueueLimits):
    """The limits of a reader: they include open reads, and an item expires at its expiry time, not after it."""

    def has_room(self, store: Any) -> bool:
        return not self.is_full(*_total(store))

    def is_exceeded(self, store: Any, last_size: int) -> bool:
        items, size = _total(store)
        return (items > self.max_items or size > self.max_bytes) and store.items > 0 and store.failure is None

    def is_expired(self, item: Item, now_ms: int) -> bool:
        max_age_ms = self.max_age_ms
        return 0 < item.expiry_ms <= now_ms or (max_age_ms is not None and item.add_ms + max_age_ms <= now_ms)


def _total(store: Any) -> tuple[int, int]:
    """Return the number of items and their bytes, including open reads."""
    return store.items + store.open_reads, store.bytes + store.open_bytes


class ReaderCounts:
    """Counters of one reader since the program started."""

    def __init__(self, counters: QueueCounters) -> None:
        self._counters = counters
        self.puts = 0
        """Items put."""
        self.put_bytes = 0
        """Bytes of data put."""
        self.get_hits = 0
        """Gets and peeks that returned an item."""
        self.get_misses = 0
        """Gets and peeks that returned None."""
        self.committed = 0
        """Open reads committed."""
        self.canceled = 0
        """Open reads returned with `unget`."""

    @property
    def expired(self) -> int:
        """Items that expired."""
        return self._counters.expired_items

    @property
    def discarded(self) -> int:
        """Items dropped to make room for newer ones."""
        return self._counters.discarded

    @property
    def opened(self) -> int:
        """Reads opened."""
        return self._counters.transactions

    @property
    def flushes(self) -> int:
        """Calls of `flush`."""
        return self._counters.total_flushes


class Reader(QueueHandle[QueueItem]):
    """A reader of a journaled queue, returned by `JournaledQueue.reader`.

    A delivered item is an open read until `commit` or `unget` is called with its id. A restart delivers open reads
    again. Methods that return a Deferred fail with `StorageError` if the queue is closed or its storage fails. The
    others raise it.
    """

    is_closed = False

    def __init__(
        self,
        name: bytes,
        config: JournaledQueueConfig,
        context: QueueContext,
        storage: ScrollStorage | MemoryStorage,
        first_id: int,
    ) -> None:
        super().__init__(context.clock, context.scheduler)
        self._queue_config = config
        self._now_ms = context.now_ms
        self._storage = storage
        self._first_id = first_id
        """Added to the ids of the store's items."""
        settings, stored_name = config.settings_for(name), config.stored_name(name)
        store = storage.queue(stored_name, settings)
        self._queue = Queue(stored_name, settings, storage, store, context, ReaderLimits)
        self._use(name)
        self.counts = ReaderCounts(self._queue.counters)
        self.create_time_ms = context.now_ms()
        self._open: dict[int, Item] = {}
        """Open reads by item id."""
        self._returned: set[int] = set()
        """Ids of open reads whose storage failed."""
        self._expired: list[Item] = []
        """Expired items that `process_expired_item` is still to be called with."""

    def _use(self, name: bytes) -> None:
        self.name = name
        """Empty for the default reader."""
        self.config = self._queue_config.reader_config(name)
        self._queue.on_expired = None if self.config.process_expired_item is None else self._process_expired

    # The underlying queue.

    def underlying(self) -> Queue:
        """Return the underlying queue. Raises `StorageError` if the reader is closed or its storage fails."""
        if self.is_closed:
            raise StorageError("the reader is closed")
        queue = self._queue
        if queue.store.failure is not None:
            queue.reopen()
        return self._known(queue)

    def _store_was_replaced(self) -> None:
        self._returned.update(self._open)
        self._open.clear()

    def reopen_if_failed(self) -> None:
        """Reopen the store if it has failed. On an error, log it and fail all waiting consumers."""
        if not self.is_closed:
            self._queue.reopen_for_waiters()

    @property
    def store(self) -> Any:
        """The reader's store in the storage."""
        return self._queue.store

    @property
    def unsettled_batch(self) -> Batch | None:
        return self._queue.unsettled_batch

    def touch(self) -> Batch:
        """Add the reader to the current batch after a change, and return the batch."""
        return self._track(self._queue.touch())

    # Putting, called by the journaled queue.

    def admits(self, size: int) -> bool:
        """Return True if the reader accepts an item of `size` bytes. Expired items are removed first."""
        return self.underlying().admits(size)

    def item_was_put(self, size: int, expiry_ms: int) -> Batch:
        """Count an item of `size` bytes that was put into the store, and serve waiting consumers."""
        self.counts.puts += 1
        self.counts.put_bytes += size
        return self._track(self._queue.item_was_put(size, expiry_ms))

    def serve(self) -> None:
        """Drop items that exceed a limit, and serve waiting consumers."""
        self._discard_surplus()
        self._queue.serve()

    def _discard_surplus(self) -> None:
        if self._queue.limits.discards_old and not self.is_closed:
            self._queue.head.discard_for(0)

    # Getting and peeking.

    def get(self, deadline_s: float | None = None, peeking: bool = False) -> Deferred[QueueItem | None]:
        """Take the next item as an open read; consumers are served in order of arrival.

        Fires with None after `deadline_s` seconds, or when the queue is closed. With 0 it waits only for the disk, with
        None it has no deadline. With `peeking` the item stays in the queue. Cancel the Deferred to leave the line.
        """
        began_s = self._clock.seconds()
        self._discard_surplus()
        return self._wait(deadline_s, opens=not peeking, peeks=peeking).addCallback(self._answered, began_s)

    def peek(self, deadline_s: float | None = None) -> Deferred[QueueItem | None]:
        """Return the next item without removing it, with the deadline of `get`."""
        return self.get(deadline_s, peeking=True)

    def _answered(self, item: QueueItem | None, began_s: float) -> QueueItem | None:
        if item is None:
            self.counts.get_misses += 1
            if self.config.timeout_latency is not None:
                waited_s = self._clock.seconds() - began_s
                _call_hook(self.config.timeout_latency, self, round(waited_s * 1000))
        else:
            self.counts.get_hits += 1
            if self.config.delivery_latency is not None:
                _call_hook(self.config.delivery_latency, self, max(0, self._now_ms() - item.add_ms))
        return item

    def deliver(self, queue: Queue, item: Item, waiter: Waiter) -> QueueItem:
        delivered = self._to_queue_item(item)
        if waiter.opens:
            self._known(queue)
            queue.add_open_read(item)
            self._open[delivered.id] = item
            self._returned.discard(delivered.id)
        return delivered

    def _to_queue_item(self, item: Item) -> QueueItem:
        return QueueItem(item.id + self._first_id, item.data, item.add_ms, item.expiry_ms, item.errors)

    # Open reads.

    def commit(self, item_id: int) -> bool:
        """Finish an open read and remove its item permanently. Return False if the item is not open.

        Raises `QueueFailed` if the storage has failed since, which returned the item to the queue.
        """
        queue = self.underlying()
        item = self._end_read(item_id)
        if item is None:
            return False
        self.counts.committed += 1
        self._track(queue.confirm([item.xid]))
        return True

    def unget(self, item_id: int) -> bool:
        """Return an item with one more error to the head of the queue, unless `error_handler` handles it.

        Return False if the item is not open. Raises `QueueFailed` if the storage has failed since.
        """
        queue = self.underlying()
        item = self._end_read(item_id)
        if item is None:
            return False
        self.counts.canceled += 1
        handler = self.config.error_handler
        failed = self._to_queue_item(item)._replace(errors=item.errors + 1)
        is_handled = handler is not None and _call_hook(handler, failed)
        self._track(queue.confirm([item.xid]) if is_handled else queue.abort([item.xid]))
        return True

    def _end_read(self, item_id: int) -> Item | None:
        item = self._open.pop(item_id, None)
        if item is None and item_id in self._returned:
            self._returned.discard(item_id)
            raise QueueFailed(READ_WAS_RETURNED)
        return item

    # All items.

    def flush(self) -> None:
        """Drop all items, except open reads."""
        self._track(self.underlying().flush())

    def empty(self) -> None:
        """Drop all items and open reads, and answer all waiting consumers with None."""
        self.flush()
        self._open.clear()
        self._track(self._queue.confirm(list(self._queue.open_read_table)))
        self.evict_waiters()

    def discard_expired(self, applies_limit: bool = True) -> Deferred[int]:
        """Discard expired items at the head, at most `max_expire_sweep` if `applies_limit`. Fires with their number."""
        return Deferred.fromCoroutine(self._discard_expired(self.config.max_expire_sweep if applies_limit else None))

    async def _discard_expired(self, most: int | None) -> int:
        count = 0
        while most is None or count < most:
            queue = self.underlying()
            at_once = MAX_SWEPT_PER_SLICE if most is None else min(MAX_SWEPT_PER_SLICE, most - count)
            swept = queue.head.sweep(at_once)
            count += swept
            if swept:
                self.touch()
            if swept == at_once:
                await self._next_tick()
            elif queue.store.peek() is None and queue.head.fill():
                await queue.head.load_ended()
            elif not swept:
                break
        return count

    def _next_tick(self) -> Deferred[None]:
        tick: Deferred[None] = Deferred()
        self._scheduler.continue_later(partial(tick.callback, None))
        return tick

    def _process_expired(self, items: list[Item]) -> None:
        """Call `process_expired_item` with each item. Items that expire during a call are processed after it."""
        self._expired += items
        if len(self._expired) > len(items):
            return  # a call further up the stack processes them
        while self._expired:
            process = self.config.process_expired_item
            if process is not None:
                _call_hook(process, self._to_queue_item(self._expired[0]))
            del self._expired[0]

    def evict_waiters(self) -> None:
        """Answer every waiting consumer with None, as if the queue were empty."""
        self._queue.answer_all()

    def checkpoint(self) -> Deferred[None]:
        """Return a Deferred that fires when all changes so far are as safe as the queue's `sync_journal_ms` promises.

        Fails with `QueueFailed` if one of them was lost, or a change since the last call. The reader is then as it was
        before the lost changes.
        """
        return self._durability.safe()

    # Renaming and closing.

    def rename(self, name: bytes) -> None:
        """Change the reader's name and configuration. The caller must then call `serve`. Raises `QueueFailed`."""
        queue = self.underlying()
        stored_name = self._queue_config.stored_name(name)
        self._storage.rename(self.store, stored_name)
        queue.name = stored_name
        queue.use_settings(self._queue_config.settings_for(name))
        self._use(name)
        self.touch()

    def delete(self) -> None:
        """Delete the reader's items with the next commit. The caller must then call `end`. Raises `StorageError`."""
        queue = self.underlying()
        queue.storage.delete(queue.store)
        self.touch()
        queue.is_deleted = True

    def end(self) -> None:
        """Close the reader: answer all waiting consumers with None, and return open reads to the queue."""
        self.is_closed = True
        self._open.clear()
        self._queue.answer_all()
        self._queue.stop()
        self._queue.end()

    # Statistics.

    @property
    def items(self) -> int:
        """Number of items, including open reads."""
        return _total(self.store)[0]

    @property
    def bytes(self) -> int:
        """Bytes of data in the items, including open reads."""
        return _total(self.store)[1]

    @property
    def open_items(self) -> int:
        """Number of open reads."""
        return int(self.store.open_reads)

    @property
    def open_bytes(self) -> int:
        """Bytes of data in the open reads."""
        return int(self.store.open_bytes)

    @property
    def waiter_count(self) -> int:
        """Number of consumers that wait for an item."""
        return len(self._queue.waiters)

    @property
    def age_ms(self) -> int:
        """Milliseconds since the item at the head was put; 0 if no item is in memory."""
        item = self.store.peek() if self.store.failure is None else None
        return 0 if item is None else max(0, self._now_ms() - item.add_ms)

    @property
    def is_ready_for_expiration(self) -> bool:
        """Whether the reader is older than `max_queue_age_ms` and has no items except open reads."""
        age_ms = self.config.max_queue_age_ms
        is_old = age_ms is not None and self._now_ms() > self.create_time_ms + age_ms
        return is_old and not self.store.items

    @property
    def can_put(self) -> bool:
        """Whether the reader accepts one more item."""
        limits = self._queue.limits
        return limits.is_never_full or limits.has_room(self.store)


def _call_hook(hook: Callable[..., Any], *args: object) -> Any:
    """Call a program's hook and return its result. If it raises, log the exception and return None."""
    try:
        return hook(*args)
    except Exception:
        log.failure("A hook of a reader failed")
        return None
