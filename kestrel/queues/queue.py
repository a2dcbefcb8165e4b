"""The life of one queue: who takes its items, what it takes, what leaves it unasked, and what happens when its
storage fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError, TooFewOpenReads, Unavailable
from kestrel.item import Item
from kestrel.queues.context import QueueContext
from kestrel.queues.counters import QueueCounters
from kestrel.queues.expiry import MAX_SWEPT_FOR_ROOM, MAX_SWEPT_PER_PUT
from kestrel.queues.head import Head, HeadOwner
from kestrel.queues.limits import QueueLimits
from kestrel.queues.moves import Moves
from kestrel.queues.open_reads import Lease, QueueOpenReads
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.waiters import Waiter, WaiterQueue
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IContinue, IQueueStorage, IStorage

log = Logger(__name__)

MAX_SERVED_PER_SLICE: Final = 64
"""Then it is the turn of others; the rest of the line is served in a later one."""


class Queue(HeadOwner):
    """A named queue over its contents in a storage.

    Everything that changes the contents touches the barrier; the batch it returns is what the reply has to
    wait for. When the storage fails, `store` is replaced by what the storage still holds: an open read
    belongs to the contents that it was taken from.
    """

    def __init__(
        self,
        name: bytes,
        settings: QueueSettings,
        storage: IStorage,
        store: IQueueStorage,
        context: QueueContext,
    ) -> None:
        super().__init__(storage, store)
        self.name = name
        self.settings = settings
        self.limits = QueueLimits(settings)
        self.is_deleted = False
        self.counters = QueueCounters(store.replayed_items, context.now_ms())
        self.created_s = context.clock.seconds()
        """When it came into being, or the server started, by the clock of timers."""
        self.histograms = QueueHistograms()
        self.waiters = WaiterQueue()
        self.open_read_table = QueueOpenReads(context.clock, self._timed_out)
        self.open_read_table.use_timeout(settings.open_transaction_timeout_ms)
        self.moves = Moves(self, context)
        self.head = Head(self, context)
        self._context = context
        self._barrier = context.barrier
        self._now_ms = context.now_ms
        self._is_serving = False
        self._is_serve_due = False

    def use_settings(self, settings: QueueSettings) -> None:
        """Go by other settings from now on."""
        self.settings = settings
        self.limits = QueueLimits(settings)
        self.open_read_table.use_timeout(settings.open_transaction_timeout_ms)
        if self.store.failure is None:
            self.storage.queue(self.name, settings)

    def use_storage(self, storage: IStorage) -> None:
        """Keep nothing in the old storage, which must hold nothing, and everything from now on in this one.

        Raises a `KestrelError` when one of them fails: then the queue is one that has failed, and its next use opens it
        in the new one.
        """
        old, self.storage = self.storage, storage
        old.delete(self.store)
        self.reopen()

    def owns_store(self, store: IQueueStorage) -> bool:
        """Whether these are its contents, and alive; what was taken from others has gone back, or is gone."""
        return self.store is store and store.failure is None and not self.is_deleted

    def touch(self) -> Batch:
        """Something was recorded: the batch that it is part of."""
        batch = self.open_batch
        if batch is not None and batch.store is self.store:
            return batch  # as the barrier would, but most of what is recorded in a tick comes this way
        return self._barrier.touch(self)

    @property
    def is_head_pending(self) -> bool:
        """Whether those in line wait for the storage, or a sweep, rather than for an item to be put."""
        return self.head.is_loading or self.head.has_expired

    @property
    def unsettled_batch(self) -> Batch | None:
        """The latest batch that is not safe yet, which whoever merely looks at the queue has to wait for."""
        return self.open_batch or self.committing

    # Items in.

    def admits(self, size: int, targets: int = 1) -> bool:
        """Whether it takes an item of that many bytes now, which is for so many queues.

        What has expired goes first, and counts no more.
        """
        limits, store, head = self.limits, self.store, self.head
        if size > limits.max_item_bytes:
            return False
        item = store.peek()
        if item is not None and head.item_has_expired(item):
            head.sweep(MAX_SWEPT_PER_PUT)
        if limits.is_never_full or not limits.is_full(store.items, store.bytes):
            return True
        if head.has_expired:
            head.sweep(MAX_SWEPT_FOR_ROOM // targets)
            if not limits.is_full(store.items, store.bytes):
                return True
        head.load()  # it may have expired, and the next put find room
        return head.has_expired and not self.moves.is_full  # there is more to sweep than there is time for now

    def item_was_put(self, size: int) -> Batch:
        """The storage has one more item, of that many bytes, at the tail."""
        self.counters.total_items += 1
        self.histograms.request_size.add(size)
        batch = self.touch()
        self._barrier.count_item(batch, size)
        if self.limits.discards_old:
            self.head.discard_for(size)
        if self.waiters.has_waiters:
            self.serve()
        return batch

    # Items out.

    def take_now(self, opens: bool) -> Item | None:
        """The head, if it is at hand and nobody stands in line for it."""
        if self.waiters.has_waiters or self.head.is_discarding:
            return None
        if opens or self.limits.expires_to is not None:
            return None if self.head.ready_item() is None else self._take_at_once(opens)
        item = self.store.take(False)
        if item is None:
            return None
        if self.head.item_has_expired(item):  # it is out; another may be at hand
            self.counters.expired_items += 1
            self.touch()
            return None if self.head.ready_item() is None else self._take_at_once(False)
        self._was_taken(item).gets += 1
        return item

    def peek_now(self) -> Item | None:
        """A look at the head, if it is at hand and nobody stands in line for it."""
        return None if self.waiters.has_waiters else self.head.ready_item()

    def _take_at_once(self, opens: bool) -> Item | None:
        item = self.store.take(opens)
        if item is not None:
            self._was_taken(item).gets += 1
        return item

    def _take_for(self, waiter: Waiter) -> Item | None:
        item = self.store.take(waiter.opens)
        if item is not None:
            self._was_taken(item)
            waited_s = self._context.clock.seconds() - waiter.began_s
            self.histograms.get_hit_latency_usec.add(int(waited_s * 1_000_000))
        return item

    def _was_taken(self, item: Item) -> Batch:
        age_ms = self._now_ms() - item.add_ms
        if age_ms < 0:
            age_ms = 0
        self.counters.age_ms = age_ms
        self.histograms.delivery_latency_msec.add(age_ms)
        return self.touch()

    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        """Its puts and gets have taken so long."""
        took_us = int((now_s - batch.began_s) * 1_000_000)
        if batch.puts:
            self.histograms.set_latency_usec.add(took_us, batch.puts)
        if batch.gets:
            self.histograms.get_hit_latency_usec.add(took_us, batch.gets)

    def join(self, waiter: Waiter) -> None:
        """Stand in line for the head; the waiter may be served before this returns."""
        waiter.began_s = self._context.clock.seconds()
        self.waiters.join(waiter)
        self.serve()

    def serve(self) -> None:
        """Serve those in line as far as there are items, and answer the impatient when there are none."""
        if self._is_serving or self.head.is_loading:
            return
        self._is_serving = True
        try:
            self.head.continue_discarding()
            for _ in range(MAX_SERVED_PER_SLICE):
                if not self.waiters or not self._serve_first():
                    break
            else:
                self.serve_later()
        except KestrelError as error:
            self.answer_all(error)
        finally:
            self._is_serving = False

    def serve_later(self) -> None:
        """The same, in another turn."""
        if not self._is_serve_due:
            self._is_serve_due = True
            self._context.scheduler.continue_later(self._serve_now)

    def _serve_now(self) -> None:
        self._is_serve_due = False
        self.serve()

    def _serve_first(self) -> bool:
        """Serve the first in line. False when that must wait."""
        waiter = self.waiters.first()
        item = self.head.ready_item()
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
            return False  # some move will end
        if self.head.is_discarding or self.head.fill():
            return False
        if self.store.peek() is not None:
            return True
        for each in self.waiters.non_blocking():
            self.waiters.leave(each)
            each.on_result(None, None)
        return False

    def answer_all(self, error: Exception | None = None) -> None:
        """Answer everyone in line: as an empty queue does, or with that error."""
        for waiter in self.waiters.all():
            self.waiters.leave(waiter)
            waiter.on_result(None, error)

    def wake_all(self) -> None:
        """The server stops: everyone in line is answered as an empty queue does, if it is one. Else its head is on the
        way, and that there is none would not be true."""
        store = self.store
        is_empty = store.failure is None and not store.items
        self.answer_all(None if is_empty else Unavailable("the server stops"))

    # Open reads, which belong to the contents they were taken from.

    def add_open_read(self, item: Item, lease: Lease | None = None) -> None:
        """A client holds that item, which was taken as an open read; with a lease only for a time."""
        self.open_read_table.opened(item, lease)
        self.counters.transactions += 1
        self._trace("opened", (item.xid,))

    def confirm(self, xids: Sequence[int]) -> Batch:
        """Finish open reads."""
        for xid in xids:
            self.open_read_table.ended(xid)
        self.store.confirm(xids)
        self._trace("confirmed", xids)
        return self.touch()

    def abort(self, xids: Sequence[int]) -> Batch:
        """A client gives reads back that it could not finish: they go to the head, xids[0] first in line, or those
        that failed too often to the error queue."""
        self.counters.canceled_transactions += len(xids)
        most, target = self.settings.max_redeliveries, self.settings.error_queue
        returned = []
        for xid in xids:
            item = self.open_read_table.ended(xid)
            if item is not None and most is not None and target is not None and item.errors + 1 >= most:
                self.moves.begin(item, target, drops=False)
            else:
                returned.append(xid)
        self._trace("aborted", xids)
        return self.put_back(returned, failed=True)

    def put_back(self, xids: Sequence[int], *, failed: bool) -> Batch:
        """Return open reads to the head, xids[0] first in line; `failed` counts as an error of each."""
        for xid in xids:
            self.open_read_table.ended(xid)
        self.store.put_back(xids, failed)
        batch = self.touch()
        if self.waiters:
            self.serve()
        return batch

    def continue_(self, xid: int, data: bytes, expiry_ms: int) -> Batch | None:
        """Finish a read that a client holds and put an item: both or neither, also in a crash.

        Where the storage cannot do both at once the read is finished when the item is safe; so a crash may leave both.
        The batch of both, or None if a limit refuses the item, and nothing has changed. Nor has it when this raises:
        `TooFewOpenReads`, or as a put.
        """
        self.check_open_read(xid)
        if not self.admits(len(data)):
            return None
        at_once = cast("IContinue | None", IContinue(self.store, None))
        if at_once is None:
            self.storage.put((self.store,), data, self._now_ms(), expiry_ms)
            return self.confirm_after(self.item_was_put(len(data)), xid)
        at_once.continue_(xid, data, self._now_ms(), expiry_ms)
        self.open_read_table.ended(xid)
        self._trace("continued", (xid,))
        return self.item_was_put(len(data))

    def check_open_read(self, xid: int) -> None:
        """Raise `TooFewOpenReads` unless a client holds that read."""
        if xid not in self.open_read_table:
            raise TooFewOpenReads("the read is not open any more: it timed out, or was ended before")

    def confirm_after(self, batch: Batch, xid: int) -> Batch:
        """Finish a read that a client holds as soon as that batch is safe; if it is lost, the item goes back.

        The batch of both. The client does not hold the read any more.
        """
        both, store = Batch(), self.store
        self.open_read_table.ended(xid)

        def settled() -> None:
            if not self.owns_store(store):
                both.settle(batch.failure)  # the read went back by itself
            elif batch.failure is not None:
                self.put_back([xid], failed=False)
                both.settle(batch.failure)
            else:
                confirmed = self.confirm([xid])
                confirmed.when_settled(lambda: both.settle(confirmed.failure))

        batch.when_settled(settled)
        return both

    def _timed_out(self, xids: list[int]) -> None:
        try:
            self.abort(xids)
        except KestrelError as error:  # its storage has failed: they went back by themselves
            log.error("Reads of queue {queue!r} timed out: {reason}", queue=self.name, reason=str(error))

    def _trace(self, what: str, xids: Sequence[int]) -> None:
        if self.settings.enable_trace:
            log.info("Queue {queue!r}: reads {what}: {xids}", queue=self.name, what=what, xids=list(xids))

    def flush(self) -> Batch:
        """Drop all but the open reads."""
        self.store.clear()
        self.head.cancel_discarding()
        self.counters.total_flushes += 1
        self.counters.age_ms = 0
        return self.touch()

    # The end, and a storage that fails.

    def stop(self) -> Deferred[None]:
        """The server stops: what clients hold goes back, in the order in which it was taken, and nothing more begins.

        Fires when what is on its way to other queues has arrived.
        """
        open_read_table = list(self.open_read_table)
        self.open_read_table.clear()
        if open_read_table and self.store.failure is None:
            self.put_back(open_read_table, failed=False)
        return self.moves.stop()

    def end(self) -> None:
        """It is deleted, or the server has stopped: nothing happens to it by itself any more."""
        self.open_read_table.clear()
        self.moves.forget()
        self.answer_all()

    def commit_failed(self, failure: Exception) -> None:
        """The contents are dead: go on with what the storage still holds."""
        try:
            self.reopen()
        except KestrelError as error:
            log.error("Queue {queue!r} cannot be opened: {reason}", queue=self.name, reason=str(error))
            self.answer_all(error)
        self._context.storage_failed()

    def reopen(self) -> None:
        """Open dead contents anew; raises `QueueFailed` when that fails too."""
        if not self.is_deleted and self.store.failure is not None:
            self.open_read_table.clear()
            self.moves.forget()
            self.head.forget()
            self.store = self.storage.queue(self.name, self.settings)
            self.serve()
