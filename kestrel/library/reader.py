"""A reader of a journaled queue: a head of its own, limits of its own, and those who wait for its items."""

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
from kestrel.storage.barrier import Batch, Committed

log = Logger(__name__)


class Reader(Committed):
    """One reader: what `JournaledQueue.reader` returns.

    An item that it gave is an open read until it is committed or given back (`commit`, `unget`, by its id); a restart
    gives open reads again. All but what returns a Deferred raises `StorageError` at once when the queue is closed or
    its storage fails; a Deferred fails with it.
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

    # Items in, by way of the queue.

    def expire_before_put(self) -> None:
        """A put is to come: some of what has expired goes first.

        Where it is full of what is on the disk alone, it sees for later puts whether that has expired.
        """
        line = self.underlying()
        if not self.can_put and self.store.peek() is None:
            self._head.fill()
        line.sweep(MAX_SWEPT_PER_PUT)

    def item_was_put(self, size: int) -> Batch:
        """The contents have one more item, of that many bytes, at the tail; `serve` is to follow."""
        self.counts.puts += 1
        self.counts.put_bytes += size
        return self.touch()

    def serve(self) -> None:
        """Items have come: drop what is too many or too old, and serve those in line."""
        self._line.has_changed()

    # Items out.

    def get(self, deadline_s: float | None = None, peeking: bool = False) -> Deferred[QueueItem | None]:
        """The next item, as an open read, when it is this consumer's turn; first come, first served.

        Fires with None when so many seconds have gone by (0 waits for the disk alone, None for ever), or when the queue
        is closed. With `peeking` the item stays where it is. Cancel it to leave the line.
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
        else:  # whoever takes item after item lets the reactor go on in between
            self._joining += 1
            scheduler.continue_later(partial(self._join_later, place))
        return place.result.addCallback(self._answered, began_s)

    def peek(self, deadline_s: float | None = None) -> Deferred[QueueItem | None]:
        """The next item, which stays there; otherwise as `get`."""
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
        """An item arrived for one of those who wait: what the program gets."""
        deliver = self.to_queue_item(item)
        if waiter.opens:
            self.counts.opened += 1
            self._open.add(deliver.id, item)
        return deliver

    def to_queue_item(self, item: Item) -> QueueItem:
        """The item as programs see it."""
        return QueueItem(item.id + self._first_id, item.data, item.add_ms, item.expiry_ms, item.errors)

    # Open reads.

    def commit(self, item_id: int) -> bool:
        """The item that was given is done: it is gone for good. False when it is not open.

        Raises `QueueFailed` where the storage has failed since, and the item is in the queue again.
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
        """Give an item back, with one more error: to the head of the queue, unless `error_handler` takes care of it.

        Otherwise as `commit`.
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
        """Drop all items but the open reads."""
        self.check()
        self.store.clear()
        self.counts.flushes += 1
        self.touch()
        self._line.serve()

    def empty(self) -> None:
        """Drop all items and open reads, and answer everyone in line."""
        self.flush()
        self.store.confirm(self._open.xids)
        self._open.end_all()
        self.answer_all()

    def discard_expired(self, applies_limit: bool = True) -> Deferred[int]:
        """Discard what has expired at the head, `max_expire_sweep` items at most unless told otherwise; how many."""
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
        """Answer everyone in line as an empty queue does."""
        self.answer_all()

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer everyone in line: as an empty queue does, or with that error."""
        self._line.answer_all(error)

    # What is done is safe, or lost.

    def checkpoint(self) -> Deferred[None]:
        """Fires when all that was done so far is as safe as the queue's `sync_journal_ms` promises.

        Fails with `QueueFailed` if something of it was lost, or of what was done since this was asked last: the reader
        is as it was before that.
        """
        return self._durability.safe()

    def touch(self) -> Batch:
        """Something was done to the contents: the batch that it is part of."""
        batch = self._context.barrier.touch(self)
        self._durability.add_batch(batch)
        return batch

    @property
    def unsettled_batch(self) -> Batch | None:
        """The latest batch that is not safe yet."""
        return self.open_batch or self.committing

    # Another name, contents that fail, and the end.

    def rename(self, name: bytes, config: JournaledQueueReaderConfig) -> None:
        """It has that name and goes by that from now on; `serve` is to follow. Raises `QueueFailed`."""
        self.check()
        self._reader_stores.rename(self.name, name)
        self.name, self.config = name, config
        self.store = self._reader_stores.store(name)
        self.touch()

    def delete(self) -> None:
        """Forget all that it has; safe with the next commit, `end` is to follow. Raises `StorageError`."""
        self.check()
        self._reader_stores.delete(self.name)
        self.touch()

    def check(self) -> None:
        """Open dead contents anew. Raises `StorageError` where that fails, or the reader is closed."""
        if self.is_closed:
            raise StorageError("the reader is closed")
        self._reopen()

    def underlying(self) -> ReaderWaiters:
        """The line for its items. Raises as `check`."""
        self.check()
        return self._line

    def _reopen(self) -> None:
        """Open dead contents anew; raises `QueueFailed` when that fails too."""
        if self.store.failure is not None:
            self._open.mark_all_lost()
            self.store = self._reader_stores.store(self.name)
            self._head.forget()
            self._line.serve()

    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        """Nothing is measured."""

    def commit_failed(self, failure: Exception) -> None:
        """The contents are dead, and others may have died with them."""
        self._context.storage_failed()

    def reopen_if_failed(self) -> None:
        """If the contents are dead, go on with what the storage still holds."""
        if self.is_closed:
            return
        try:
            self._reopen()
        except KestrelError as error:
            log.error("Reader {reader!r} cannot be opened: {reason}", reader=self.name, reason=str(error))
            self._line.answer_all(error)

    def end(self) -> None:
        """Answer everyone in line, put open reads back, and take nothing more."""
        self.is_closed = True
        if self.store.failure is None:
            self.store.put_back(self._open.xids, False)
        self._open.end_all()
        self.answer_all()

    # Figures.

    @property
    def items(self) -> int:
        """How many items it holds, open reads counted."""
        return self.store.items + len(self._open)

    @property
    def bytes(self) -> int:
        """Their data."""
        return self.store.bytes + self._open.bytes

    @property
    def open_items(self) -> int:
        """How many of its items are open reads,"""
        return len(self._open)

    @property
    def open_bytes(self) -> int:
        """and their data."""
        return self._open.bytes

    @property
    def waiter_count(self) -> int:
        """How many consumers stand in line."""
        return len(self._line.waiters)

    @property
    def age_ms(self) -> int:
        """How long its head has waited; 0 when none is in memory."""
        item = self.store.peek() if self.store.failure is None else None
        return 0 if item is None else max(0, self._context.now_ms() - item.add_ms)

    @property
    def is_ready_for_expiration(self) -> bool:
        """Whether it is older than `max_queue_age_ms`, and has nothing more to give."""
        age_ms = self.config.max_queue_age_ms
        is_old = age_ms is not None and self._context.now_ms() > self.create_time_ms + age_ms
        return is_old and not self.store.items

    @property
    def can_put(self) -> bool:
        """Whether it takes one more item."""
        config = self.config
        if config.full_policy is FullPolicy.DROP_OLDEST:
            return True
        has_place = config.max_items is None or self.items < config.max_items
        return has_place and (config.max_size_bytes is None or self.bytes < config.max_size_bytes)
