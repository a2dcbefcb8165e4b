"""A queue: its puts, gets and open reads, the items that leave it by limits, and the recovery from a failed storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError, TooFewOpenReads, Unavailable
from kestrel.escaping import show_name
from kestrel.item import Item
from kestrel.queues.context import QueueContext
from kestrel.queues.counters import QueueCounters
from kestrel.queues.head import Head, HeadOwner
from kestrel.queues.limits import MAX_SWEPT_FOR_ROOM, MAX_SWEPT_PER_PUT, QueueLimits
from kestrel.queues.moves import Moves
from kestrel.queues.open_reads import Lease, QueueOpenReads
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.waiters import Waiter, WaiterQueue
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IContinue, IQueueStorage, IStorage

log = Logger(__name__)

MAX_SERVED_PER_SLICE: Final = 64


class Queue(HeadOwner):
    """A named queue over its store in a storage.

    Every change of the store touches the barrier, and the reply waits for the returned batch. When the storage fails,
    `store` is replaced by a new one with what the storage still holds. An open read belongs to the store that it was
    taken from.
    """

    def __init__(
        self,
        name: bytes,
        settings: QueueSettings,
        storage: IStorage,
        store: IQueueStorage,
        context: QueueContext,
        limits_of: Callable[[QueueSettings], QueueLimits] = QueueLimits,
    ) -> None:
        super().__init__(storage, store)
        self.name = name
        self.settings = settings
        self._limits_of = limits_of
        self.limits = limits_of(settings)
        self.on_expired: Callable[[list[Item]], object] | None = None
        self.is_deleted = False
        self.counters = QueueCounters(store.replayed_items, context.now_ms())
        self.created_s = context.clock.seconds()
        """Monotonic time at which the queue was created, or the server started."""
        self.histograms = QueueHistograms()
        self.waiters = WaiterQueue()
        self.open_read_table = QueueOpenReads(context.clock, self._timed_out)
        self.open_read_table.use_timeout(settings.open_transaction_timeout_ms)
        self.moves = Moves(self, context)
        self.head = Head(self, context)
        self._context = context
        self._barrier = context.barrier
        self._is_serving = False
        self._serves_again = False
        """Whether a callback of `serve` has called `serve`, which may find more to do."""
        self._is_serve_due = False
        self._may_have_expiries = store.items > 0
        """Whether an item of the queue may have an expiry time of its own."""

    def use_settings(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.limits = self._limits_of(settings)
        self.open_read_table.use_timeout(settings.open_transaction_timeout_ms)
        if self.store.failure is None:
            self.storage.queue(self.name, settings)

    def use_storage(self, storage: IStorage) -> None:
        """Move the queue, which must be empty, to another storage.

        Raises `StorageError`, and changes nothing, if the old storage cannot delete it. If the new storage cannot open
        it, this raises a `KestrelError`, and the next use of the queue tries again.
        """
        self.storage.delete(self.store)
        self.storage = storage
        self.reopen()

    def owns_store(self, store: IQueueStorage) -> bool:
        """Return True if `store` is the queue's current store and has not failed. Reads of other stores have ended."""
        return self.store is store and store.failure is None and not self.is_deleted

    def touch(self) -> Batch:
        return self._barrier.touch(self)

    @property
    def is_head_pending(self) -> bool:
        """Whether waiters wait for the storage, a sweep or a discard, not for a put."""
        return self.head.is_loading or self.head.has_expired or self.head.discarding_for_bytes is not None

    @property
    def unsettled_batch(self) -> Batch | None:
        """The latest batch that is not settled, if any. A reply about the queue's state has to wait for it."""
        return self.open_batch or self.committing

    # Puts.

    def admits(self, size: int, targets: int = 1) -> bool:
        """Return True if the queue accepts an item of `size` bytes.

        Expired items are swept first and do not count. `targets` is the number of queues that are asked for the same
        item; with more of them, each sweeps fewer items.
        """
        limits, store, head = self.limits, self.store, self.head
        if size > limits.max_item_bytes:
            return False
        if self._may_have_expiries or limits.max_age_ms is not None:
            head.sweep(MAX_SWEPT_PER_PUT)
        if limits.is_never_full or limits.has_room(store):
            return True
        if head.has_expired:
            head.sweep(MAX_SWEPT_FOR_ROOM // targets)
            if limits.has_room(store):
                return True
        head.load()  # the head may have expired, and the next put may find room
        return head.has_expired and not self.moves.is_full  # there are more expired items than there is time to sweep

    def item_was_put(self, size: int, expiry_ms: int) -> Batch:
        """Record that the storage appended an item of `size` bytes, and serve the waiters. Return the batch."""
        self.counters.total_items += 1
        self.histograms.request_size.add(size)
        if expiry_ms:
            self._may_have_expiries = True
        batch = self._barrier.touch(self)
        batch.add_put(size)
        if self.limits.discards_old:
            self.head.discard_for(size)
        if self.waiters.has_waiters:
            self.serve()
        return batch

    def item_was_relayed(self, size: int) -> None:
        """Count the put of an item of `size` bytes that only the children get (fanoutOnly)."""
        self.counters.total_items += 1
        self.histograms.request_size.add(size)

    # Gets.

    def take_now(self, opens: bool) -> Item | None:
        """Take and return the head, with `opens` as an open read.

        Return None if it is not in memory, there are waiters, or items are still to be discarded.
        """
        head = self.head
        if self.waiters.has_waiters or head.discarding_for_bytes is not None:
            return None
        # Most items never expire, and need no look at the head before it is taken.
        may_expire = self._may_have_expiries or self.limits.max_age_ms is not None
        if may_expire and head.ready_item() is None:
            return None
        item = self.store.take(opens)
        if item is not None:
            self._was_taken(item).gets += 1
        return item

    def peek_now(self) -> Item | None:
        """Return the head without taking it, or None if it is not in memory or there are waiters."""
        return None if self.waiters.has_waiters else self.head.ready_item()

    def _take_for(self, waiter: Waiter) -> Item | None:
        item = self.store.take(waiter.opens)
        if item is not None:
            self._was_taken(item)
            waited_s = self._context.clock.seconds() - waiter.began_s
            self.histograms.get_hit_latency_usec.add(int(waited_s * 1_000_000))
        return item

    def _was_taken(self, item: Item) -> Batch:
        age_ms = self._context.now_ms() - item.add_ms
        if age_ms < 0:
            age_ms = 0
        self.counters.age_ms = age_ms
        self.histograms.delivery_latency_msec.add(age_ms)
        return self._barrier.touch(self)

    @property
    def oldest_age_ms(self) -> int | None:
        """Time since the put of the head, 0 if the queue is empty, or None while the head is only on disk."""
        store = self.store
        if not store.items:
            return 0
        head = store.peek() if store.failure is None else None
        return None if head is None else max(0, self._context.now_ms() - head.add_ms)

    @property
    def delayed_items(self) -> int:
        """Number of items that become visible in this queue later."""
        return self._context.delayed_items_of(self.name)

    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        """Add the time since `batch` began to the histograms of its puts and gets."""
        took_us = int((now_s - batch.began_s) * 1_000_000)
        if batch.puts:
            self.histograms.set_latency_usec.add(took_us, batch.puts)
        if batch.gets:
            self.histograms.get_hit_latency_usec.add(took_us, batch.gets)

    def join(self, waiter: Waiter) -> None:
        """Add a waiter, which may be served before this returns."""
        waiter.began_s = self._context.clock.seconds()
        self.waiters.join(waiter)
        self.serve()

    def serve(self) -> None:
        """Serve waiters while there are items. Answer non-blocking waiters if the queue is empty."""
        if self._is_serving:
            self._serves_again = True
            return
        if self.head.is_loading:
            return
        self._is_serving = True
        try:
            self.head.continue_discarding()
            for _ in range(MAX_SERVED_PER_SLICE):
                self._serves_again = False
                if not (self.waiters.has_waiters and self._serve_first()) and not self._serves_again:
                    break
            else:
                self.serve_later()
        except KestrelError as error:
            self.answer_all(error)
        finally:
            self._is_serving = False

    def serve_later(self) -> None:
        if not self._is_serve_due:
            self._is_serve_due = True
            self._context.scheduler.continue_later(self._serve_now)

    def _serve_now(self) -> None:
        self._is_serve_due = False
        self.serve()

    def _serve_first(self) -> bool:
        """Serve the first waiter. Return False if it must wait."""
        item = self.head.ready_item()
        if not self.waiters.has_waiters:
            return False  # `on_expired` has answered them
        waiter = self.waiters.first()
        if item is not None and not waiter.peeks:
            item = self._take_for(waiter)
        if item is not None:
            self.waiters.leave(waiter)
            waiter.on_result(item, None)
            return True
        if self.head.has_expired:
            if not self.moves.is_full:
                self.serve_later()
            elif self.moves.failure is not None:
                raise self.moves.failure
            return False  # it continues when a move ends
        if self.head.discarding_for_bytes is not None or self.head.fill():
            return False
        if self.store.peek() is not None:
            return True
        for each in self.waiters.non_blocking():
            if self.waiters.leave(each):
                each.on_result(None, None)
        return False

    def answer_all(self, error: Exception | None = None) -> None:
        for waiter in self.waiters.all():
            if self.waiters.leave(waiter):  # the callback of one may cancel another
                waiter.on_result(None, error)

    def wake_all(self) -> None:
        """Answer all waiters, because the server stops: with no item if the queue is empty, or else with an error."""
        store = self.store
        is_empty = store.failure is None and not store.items
        self.answer_all(None if is_empty else Unavailable("the server stops"))

    # Open reads, which belong to the store that they were taken from.

    def add_open_read(self, item: Item, lease: Lease | None = None) -> None:
        """Add the open read of an item to the table, with its own timeout if there is a lease."""
        self.open_read_table.opened(item, lease)
        self.counters.transactions += 1
        if self.settings.enable_trace:
            self._trace("opened", (item.xid,))

    def confirm(self, xids: Sequence[int]) -> Batch:
        """Confirm open reads, which removes their items. Return the batch."""
        for xid in xids:
            self.open_read_table.ended(xid)
        self.store.confirm(xids)
        if self.settings.enable_trace:
            self._trace("confirmed", xids)
        return self._barrier.touch(self)

    def abort(self, xids: Sequence[int]) -> Batch:
        """Abort open reads: put them back at the head, `xids[0]` first, and return the batch.

        Each item's error count rises. Items that failed maxRedeliveries times move to the error queue.
        """
        self.counters.canceled_transactions += len(xids)
        most, target = self.settings.max_redeliveries, self.settings.error_queue
        returned = []
        for xid in xids:
            item = self.open_read_table.ended(xid)
            if item is not None and most is not None and target is not None and item.errors + 1 >= most:
                self.moves.begin(item, target, drops=False)
            else:
                returned.append(xid)
        if self.settings.enable_trace:
            self._trace("aborted", xids)
        return self.put_back(returned, failed=True)

    def put_back(self, xids: Sequence[int], *, failed: bool) -> Batch:
        """Put open reads back at the head, `xids[0]` first, and return the batch.

        With `failed`, each item's error count rises.
        """
        for xid in xids:
            self.open_read_table.ended(xid)
        self.store.put_back(xids, failed)
        batch = self.touch()
        if self.waiters:
            self.serve()
        return batch

    def continue_(self, xid: int, data: bytes, expiry_ms: int) -> Batch | None:
        """End an open read and put an item, both or neither, even in a crash.

        A storage that cannot do both at once ends the read when the item is committed, so a crash may leave both.
        Return the batch of both, or None if a limit refuses the item. Raises `TooFewOpenReads`, or the errors of a put.
        If it returns None or raises, nothing has changed.
        """
        self.check_open_read(xid)
        if not self.admits(len(data)):
            return None
        at_once = cast("IContinue | None", IContinue(self.store, None))
        if at_once is None:
            self.storage.put((self.store,), data, self._context.now_ms(), expiry_ms)
            return self.confirm_after(self.item_was_put(len(data), expiry_ms), xid)
        at_once.continue_(xid, data, self._context.now_ms(), expiry_ms)
        self.open_read_table.ended(xid)
        if self.settings.enable_trace:
            self._trace("continued", (xid,))
        return self.item_was_put(len(data), expiry_ms)

    def check_open_read(self, xid: int) -> None:
        if xid not in self.open_read_table:
            raise TooFewOpenReads("the read is no longer open: it timed out or was ended before")

    def confirm_after(self, batch: Batch, xid: int) -> Batch:
        """Confirm an open read when `batch` is committed. If the batch is lost, the item is put back.

        Return a batch for both. The read is no longer in the table of open reads.
        """
        both, store = Batch(), self.store
        self.open_read_table.ended(xid)

        def settled() -> None:
            if not self.owns_store(store):
                both.settle(batch.failure)  # the failed store has put the read back
            elif batch.failure is not None:
                self.put_back([xid], failed=False)
                both.settle(batch.failure)
            else:
                both.settle_with(self.confirm([xid]))

        batch.when_settled(settled)
        return both

    def _timed_out(self, xids: list[int]) -> None:
        try:
            self.abort(xids)
        except KestrelError as error:  # the storage has failed, which put them back
            log.error("Reads of queue {queue} timed out: {reason}", queue=show_name(self.name), reason=str(error))

    def _trace(self, what: str, xids: Sequence[int]) -> None:
        log.info("Queue {queue}: reads {what}: {xids}", queue=show_name(self.name), what=what, xids=list(xids))

    def flush(self) -> Batch:
        """Drop all items except open reads. Return the batch."""
        self.store.clear()
        self.head.cancel_discarding()
        self.counters.total_flushes += 1
        self.counters.age_ms = 0
        return self.touch()

    # The end, and storage failures.

    def stop(self) -> Deferred[None]:
        """Put all open reads back in the order in which they were taken, and start no further moves.

        Fires when the batches of all moves are settled.
        """
        open_read_table = list(self.open_read_table)
        self.open_read_table.clear()
        if open_read_table and self.store.failure is None:
            self.put_back(open_read_table, failed=False)
        return self.moves.stop()

    def end(self) -> None:
        """Stop all timers and answer the waiters, because the queue was deleted or the server has stopped."""
        self.open_read_table.clear()
        self.moves.forget()
        self.answer_all()

    def commit_failed(self, failure: Exception) -> None:
        self.reopen_for_waiters()
        self._context.storage_failed()

    def reopen_for_waiters(self) -> None:
        """Reopen a failed store. On an error, log it and answer all waiters with it."""
        try:
            self.reopen()
        except KestrelError as error:
            log.error("Queue {queue} cannot be opened: {reason}", queue=show_name(self.name), reason=str(error))
            self.answer_all(error)

    def reopen(self) -> None:
        """Reopen the store if it has failed, and serve the waiters. Raises `QueueFailed` if it cannot be opened."""
        if not self.is_deleted and self.store.failure is not None:
            self.open_read_table.clear()
            self.moves.forget()
            self.head.forget()
            self.store = self.storage.queue(self.name, self.settings)
            self._may_have_expiries = True
            self.serve()
