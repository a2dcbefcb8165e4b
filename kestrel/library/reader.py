"""A reader of a journaled queue, with its own head, limits and waiting consumers."""

from __future__ import annotations

from functools import partial

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from kestrel.errors import KestrelError, StorageError
from kestrel.item import Item
from kestrel.library.deferred_waiter import DeferredWaiter
from kestrel.library.durability import DurabilityTracker
from kestrel.library.full_policy import FullPolicy
from kestrel.library.journaled_config import JournaledQueueReaderConfig, QueueItem
from kestrel.library.open_reads import ReaderOpenReads
from kestrel.library.reader_counts import ReaderCounts
from kestrel.library.reader_head import ReaderHead, call_hook
from kestrel.library.reader_stores import ReaderStores
from kestrel.library.reader_waiters import ReaderWaiters
from kestrel.library.recursion_limit import RecursionLimit
from kestrel.queues.context import RuntimeContext
from kestrel.queues.expiry import MAX_SWEPT_PER_PUT, MAX_SWEPT_PER_SLICE
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch, CommittedQueue

log = Logger(__name__)


class Reader(CommittedQueue):
    """A reader of a journaled queue, returned by `JournaledQueue.reader`.

    A delivered item is an open read until `commit` or `unget` is called with its id. A restart delivers open reads
    again. Methods that return a Deferred fail with `StorageError` if the queue is closed or its storage fails. The
    others raise it.
    """

    def __init__(
        self, name: bytes, config: JournaledQueueReaderConfig, context: RuntimeContext, reader_stores: ReaderStores
    ) -> None:
        super().__init__(reader_stores.storage, reader_stores.store(name))
        self.name = name
        """Empty for the default reader."""
        self.config = config
        self._context = context
        self._reader_stores = reader_stores
        self._first_id = reader_stores.first_id
        self.is_closed = False
        self.counts = ReaderCounts()
        self.create_time_ms = context.now_ms()
        self._head = ReaderHead(self, context.now_ms)
        self._line = ReaderWaiters(self, self._head, context.scheduler.continue_later)
        self._open = ReaderOpenReads()
        self._durability = DurabilityTracker()
        self._recursion_limit = RecursionLimit()
        self._joining = 0

    # Putting, called by the queue.

    def expire_before_put(self) -> None:
        """Remove some expired items before a put.

        If the reader is full and its head is only on disk, begin to load the head, so that later puts can expire it.
        """
        line = self.underlying()
        if not self.can_put and self.store.peek() is None:
            self._head.fill()
        line.sweep(MAX_SWEPT_PER_PUT)

    def item_was_put(self, size: int) -> Batch:
        """Count an item of `size` bytes that was put into the store. The caller must then call `serve`."""
        self.counts.puts += 1
        self.counts.put_bytes += size
        return self.touch()

    def serve(self) -> None:
        """Drop items that exceed a limit or have expired, and serve waiting consumers."""
        self._line.has_changed()

    # Getting and peeking.

    def get(self, deadline_s: float | None = None, peeking: bool = False) -> Deferred[QueueItem | None]:
        """Take the next item as an open read; consumers are served in order of arrival.

        Fires with None after `deadline_s` seconds, or when the queue is closed. With 0 it waits only for the disk, with
        None it has no deadline. With `peeking` the item stays in the queue. Cancel the Deferred to leave the line.
        """
        try:
            self.check()
        except KestrelError as error:
            return fail(error)
        place = DeferredWaiter(self, self._context.clock, deadline_s, opens=not peeking, peeks=peeking)
        began_s = self._context.clock.seconds()
        scheduler = self._context.scheduler
        is_at_hand = not self._line.waiters and self.store.peek() is not None
        if not self._joining and scheduler.has_time() and (not is_at_hand or self._recursion_limit.may_recurse()):
            place.join()
        else:  # a consumer that takes item after item must not starve the reactor
            self._joining += 1
            scheduler.continue_later(partial(self._join_later, place))
        return place.result.addCallback(self._answered, began_s)

    def peek(self, deadline_s: float | None = None) -> Deferred[QueueItem | None]:
        """Return the next item without removing it, with the deadline of `get`."""
        return self.get(deadline_s, peeking=True)

    def _join_later(self, place: DeferredWaiter[ReaderWaiters, QueueItem]) -> None:
        self._joining -= 1
        place.join()

    def _answered(self, item: QueueItem | None, began_s: float) -> QueueItem | None:
        if item is None:
            self.counts.get_misses += 1
            if self.config.timeout_latency is not None:
                waited_s = self._context.clock.seconds() - began_s
                call_hook(self.config.timeout_latency, self, round(waited_s * 1000))
        else:
            self.counts.get_hits += 1
            if self.config.delivery_latency is not None:
                call_hook(self.config.delivery_latency, self, max(0, self._context.now_ms() - item.add_ms))
        return item

    def deliver(self, line: ReaderWaiters, item: Item, waiter: Waiter) -> QueueItem:
        """Record the open read of an item that arrived for a waiter, and convert the item for the program."""
        deliver = self.to_queue_item(item)
        if waiter.opens:
            self.counts.opened += 1
            self._open.add(deliver.id, item)
        return deliver

    def to_queue_item(self, item: Item) -> QueueItem:
        """Convert a stored item for the program."""
        return QueueItem(item.id + self._first_id, item.data, item.add_ms, item.expiry_ms, item.errors)

    # Open reads.

    def commit(self, item_id: int) -> bool:
        """Finish an open read and remove its item permanently. Return False if the item is not open.

        Raises `QueueFailed` if the storage has failed since, which returned the item to the queue.
        """
        self.check()
        item = self._open.end(item_id)
        if item is None:
            return False
        self.store.confirm([item.xid])
        self.counts.committed += 1
        self.touch()
        return True

    def unget(self, item_id: int) -> bool:
        """Return an item with one more error to the head of the queue, unless `error_handler` handles it.

        Return False if the item is not open. Raises `QueueFailed` if the storage has failed since.
        """
        self.check()
        item = self._open.end(item_id)
        if item is None:
            return False
        self.counts.canceled += 1
        handler = self.config.error_handler
        failed = self.to_queue_item(item)._replace(errors=item.errors + 1)
        if handler is not None and call_hook(handler, failed):
            self.store.confirm([item.xid])
        else:
            self.store.put_back([item.xid], True)
        self.touch()
        self._line.serve()
        return True

    # All items.

    def flush(self) -> None:
        """Drop all items, except open reads."""
        self.check()
        self.store.clear()
        self.counts.flushes += 1
        self.touch()
        self._line.serve()

    def empty(self) -> None:
        """Drop all items and open reads, and answer all waiting consumers with None."""
        self.flush()
        self.store.confirm(self._open.xids)
        self._open.end_all()
        self.answer_all()

    def discard_expired(self, applies_limit: bool = True) -> Deferred[int]:
        """Discard expired items at the head, at most `max_expire_sweep` if `applies_limit`. Fires with their number."""
        return Deferred.fromCoroutine(self._discard_expired(self.config.max_expire_sweep if applies_limit else None))

    async def _discard_expired(self, most: int | None) -> int:
        count = 0
        while most is None or count < most:
            self.check()
            at_once = MAX_SWEPT_PER_SLICE if most is None else min(MAX_SWEPT_PER_SLICE, most - count)
            swept = self._line.sweep(at_once)
            count += swept
            if swept == at_once:
                await self._next_turn()
            elif self.store.peek() is None and self._head.fill():
                await self._head.filled()
            elif not swept:
                break
        return count

    def _next_turn(self) -> Deferred[None]:
        turn: Deferred[None] = Deferred()
        self._context.scheduler.continue_later(partial(turn.callback, None))
        return turn

    def evict_waiters(self) -> None:
        """Answer every waiting consumer with None, as if the queue were empty."""
        self.answer_all()

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer every waiting consumer with None, or with `error`."""
        self._line.answer_all(error)

    # Durability.

    def checkpoint(self) -> Deferred[None]:
        """Return a Deferred that fires when all changes so far are as safe as the queue's `sync_journal_ms` promises.

        Fails with `QueueFailed` if one of them was lost, or a change since the last call. The reader is then as it was
        before the lost changes.
        """
        return self._durability.safe()

    def touch(self) -> Batch:
        """Add the reader to the current batch after a change, and return the batch."""
        batch = self._context.barrier.touch(self)
        self._durability.add_batch(batch)
        return batch

    @property
    def unsettled_batch(self) -> Batch | None:
        """The latest batch that is not yet safe, or None."""
        return self.open_batch or self.committing

    # Renaming, storage failures and closing.

    def rename(self, name: bytes, config: JournaledQueueReaderConfig) -> None:
        """Change the reader's name and configuration. The caller must then call `serve`. Raises `QueueFailed`."""
        self.check()
        self._reader_stores.rename(self.name, name)
        self.name, self.config = name, config
        self.store = self._reader_stores.store(name)
        self.touch()

    def delete(self) -> None:
        """Delete the reader's items with the next commit. The caller must then call `end`. Raises `StorageError`."""
        self.check()
        self._reader_stores.delete(self.name)
        self.touch()

    def check(self) -> None:
        """Raise `StorageError` if the reader is closed. Reopen its store if the store has failed."""
        if self.is_closed:
            raise StorageError("the reader is closed")
        self._reopen()

    def underlying(self) -> ReaderWaiters:
        """Return the reader's line of waiters. Raises `StorageError` if the reader is closed or its store cannot be
        reopened.
        """
        self.check()
        return self._line

    def _reopen(self) -> None:
        """Reopen the store if it has failed. Raises `QueueFailed` if that fails too."""
        if self.store.failure is not None:
            self._open.mark_all_lost()
            self.store = self._reader_stores.store(self.name)
            self._head.forget()
            self._line.serve()

    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        """Do nothing: a reader does not measure commits."""

    def commit_failed(self, failure: Exception) -> None:
        """Reopen every failed store, since other stores may have failed in the same commit."""
        self._context.storage_failed()

    def reopen_if_failed(self) -> None:
        """Reopen the store if it has failed. On an error, log it and fail all waiting consumers."""
        if self.is_closed:
            return
        try:
            self._reopen()
        except KestrelError as error:
            log.error("Cannot reopen reader {reader!r}: {reason}", reader=self.name, reason=str(error))
            self._line.answer_all(error)

    def end(self) -> None:
        """Close the reader: answer all waiting consumers with None, and return open reads to the queue."""
        self.is_closed = True
        if self.store.failure is None:
            self.store.put_back(self._open.xids, False)
        self._open.end_all()
        self.answer_all()

    # Statistics.

    @property
    def items(self) -> int:
        """Number of items, including open reads."""
        return self.store.items + len(self._open)

    @property
    def bytes(self) -> int:
        """Bytes of data in the items, including open reads."""
        return self.store.bytes + self._open.bytes

    @property
    def open_items(self) -> int:
        """Number of open reads."""
        return len(self._open)

    @property
    def open_bytes(self) -> int:
        """Bytes of data in the open reads."""
        return self._open.bytes

    @property
    def waiter_count(self) -> int:
        """Number of consumers that wait for an item."""
        return len(self._line.waiters)

    @property
    def age_ms(self) -> int:
        """Milliseconds since the item at the head was put; 0 if no item is in memory."""
        item = self.store.peek() if self.store.failure is None else None
        return 0 if item is None else max(0, self._context.now_ms() - item.add_ms)

    @property
    def is_ready_for_expiration(self) -> bool:
        """Whether the reader is older than `max_queue_age_ms` and has no items except open reads."""
        age_ms = self.config.max_queue_age_ms
        is_old = age_ms is not None and self._context.now_ms() > self.create_time_ms + age_ms
        return is_old and not self.store.items

    @property
    def can_put(self) -> bool:
        """Whether the reader accepts one more item."""
        config = self.config
        if config.full_policy is FullPolicy.DROP_OLDEST:
            return True
        has_place = config.max_items is None or self.items < config.max_items
        return has_place and (config.max_size_bytes is None or self.bytes < config.max_size_bytes)
