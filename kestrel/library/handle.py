"""The common part of the queue objects that a program uses: waiting for items, and the durability of changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime

from kestrel.errors import KestrelError, QueueFailed, StorageError
from kestrel.item import Item
from kestrel.library.concurrent_blocking_queue import RecursionLimit
from kestrel.queues.queue import Queue
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.timer import Timer
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage


def when_batch_settled(batch: Batch) -> Deferred[None]:
    """Return a Deferred that fires when the batch is safe or lost."""
    done: Deferred[None] = Deferred()
    batch.when_settled(partial(done.callback, None))
    return done


def when_batch_safe(batch: Batch) -> Deferred[None]:
    """Return a Deferred that fires when the batch is safe, and fails with the batch's error if it was lost."""
    done: Deferred[None] = Deferred()
    batch.when_settled(lambda: done.callback(None) if batch.failure is None else done.errback(batch.failure))
    return done


async def wait_for_all(changes: Iterable[Awaitable[None]]) -> None:
    """Wait until all changes are safe or lost, one after the other. Then raise the error of the first loss."""
    loss: StorageError | None = None
    for change in changes:
        try:
            await change
        except StorageError as error:
            loss = loss or error
    if loss is not None:
        raise loss


class DurabilityTracker:
    """The batches of one queue that are not yet safe, and a loss that was not yet reported."""

    def __init__(self) -> None:
        self._unsettled: dict[Batch, None] = {}
        self._loss: Exception | None = None

    def add_batch(self, batch: Batch) -> None:
        """Track a batch that contains a change to the queue."""
        if not batch.is_settled and batch not in self._unsettled:
            self._unsettled[batch] = None
            batch.when_settled(partial(self._batch_settled, batch))

    def _batch_settled(self, batch: Batch) -> None:
        del self._unsettled[batch]
        self._loss = batch.failure or self._loss

    def safe(self) -> Deferred[None]:
        """Return a Deferred that fires when all changes so far are safe.

        Fails with `QueueFailed` if one of them was lost, or a change since the last call.
        """
        return Deferred.fromCoroutine(self._safe())

    async def _safe(self) -> None:
        batches = list(self._unsettled)
        for batch in batches:
            await when_batch_settled(batch)
        losses = [batch.failure for batch in batches if batch.failure is not None]
        loss, self._loss = losses[0] if losses else self._loss, None
        if loss is not None:
            raise QueueFailed(str(loss)) from loss


T = TypeVar("T")

READ_WAS_RETURNED: Final = "the queue's storage failed while the read was open: its item is back in the queue"


class QueueHandle(ABC, Generic[T]):
    """A program's access to one `kestrel.queues.queue.Queue`. Its gets fire with `T`."""

    def __init__(self, clock: IReactorTime, scheduler: TickScheduler) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._durability = DurabilityTracker()
        self._recursion_limit = RecursionLimit()
        self._joining = 0
        """Number of consumers that will enter the line in a later tick."""
        self._known_store: IQueueStorage | None = None

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the queue is closed or being closed."""

    @abstractmethod
    def underlying(self) -> Queue:
        """Return the underlying queue, as the server uses it. Raises a `KestrelError` if it cannot be used."""

    @abstractmethod
    def deliver(self, queue: Queue, item: Item, waiter: Waiter) -> T:
        """Record that an item arrived for a waiter, and convert it for the program."""

    @abstractmethod
    def _store_was_replaced(self) -> None:
        """Record that the storage has failed, which returned all open reads to the queue."""

    def _known(self, queue: Queue) -> Queue:
        """Return `queue`. Call `_store_was_replaced` if it has another store than before."""
        if queue.store is not self._known_store:
            if self._known_store is not None:
                self._store_was_replaced()
            self._known_store = queue.store
        return queue

    def _track(self, batch: Batch) -> Batch:
        """Track the batch of a change, and return it."""
        self._durability.add_batch(batch)
        return batch

    def _wait(self, deadline_s: float | None, *, opens: bool, peeks: bool) -> Deferred[T | None]:
        """Take or peek at the next item, after the consumers that already wait.

        Fires with None after `deadline_s` seconds, or when the queue is closed. With 0 it waits only for the disk, with
        None it has no deadline.
        """
        try:
            queue = self.underlying()
        except KestrelError as error:
            return fail(error)
        waiter = _DeferredWaiter(self, self._clock, deadline_s, opens=opens, peeks=peeks)
        is_at_hand = not queue.waiters.has_waiters and queue.store.peek() is not None
        may_recurse = not is_at_hand or self._recursion_limit.may_recurse()
        if not self._joining and self._scheduler.has_time() and may_recurse:
            waiter.join()
        else:  # a consumer that takes item after item must not starve the reactor
            self._joining += 1
            self._scheduler.continue_later(partial(self._join_later, waiter))
        return waiter.result

    def _join_later(self, waiter: _DeferredWaiter[T]) -> None:
        self._joining -= 1
        waiter.join()


class _DeferredWaiter(Generic[T]):
    """A consumer that waits for an item of a queue. `result` fires once."""

    def __init__(
        self, handle: QueueHandle[T], clock: IReactorTime, deadline_s: float | None, *, opens: bool, peeks: bool
    ) -> None:
        self.result: Deferred[T | None] = Deferred(lambda _: self._leave())
        self._handle = handle
        self._queue: Queue | None = None
        """The queue that this waiter has joined, or None."""
        is_blocking = deadline_s is None or deadline_s > 0
        self._waiter = Waiter(self._item_arrived, opens=opens, peeks=peeks, is_blocking=is_blocking)
        self._timer = Timer(clock, self._time_is_over)
        if deadline_s is not None and is_blocking:
            self._timer.start(deadline_s)

    def join(self) -> None:
        """Enter the line, unless the wait has already ended. The item may arrive before this returns."""
        if self.result.called:
            return
        if self._handle.is_closed:
            self._item_arrived(None, None)
            return
        try:
            self._queue = self._handle.underlying()
        except KestrelError as error:
            self._item_arrived(None, error)
        else:
            self._queue.join(self._waiter)

    def _time_is_over(self) -> None:
        if self._queue is None:
            self._waiter.is_blocking = False
        elif self._queue.is_head_pending:
            # the queue may not be empty: the waiter is answered when the head is known
            self._queue.waiters.make_non_blocking(self._waiter)
        else:
            self._item_arrived(None, None)

    def _leave(self) -> None:
        if self._queue is not None:
            self._queue.waiters.leave(self._waiter)
        self._timer.stop()

    def _item_arrived(self, item: Item | None, error: Exception | None) -> None:
        self._leave()
        if error is not None:
            self.result.errback(error)
        elif item is None or self._queue is None:
            self.result.callback(None)
        else:
            self.result.callback(self._handle.deliver(self._queue, item, self._waiter))
