"""The common part of the queue objects that a program uses: waiting for items, and the durability of changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Final, Generic, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from kestrel.errors import KestrelError
from kestrel.item import Item
from kestrel.library.durability import DurabilityTracker
from kestrel.library.recursion_limit import RecursionLimit
from kestrel.queues.queue import Queue
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage

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
        self._timer: IDelayedCall | None = None
        if deadline_s is not None and is_blocking:
            self._timer = clock.callLater(deadline_s, self._time_is_over)

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
        self._timer = None
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
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _item_arrived(self, item: Item | None, error: Exception | None) -> None:
        self._leave()
        if error is not None:
            self.result.errback(error)
        elif item is None or self._queue is None:
            self.result.callback(None)
        else:
            self.result.callback(self._handle.deliver(self._queue, item, self._waiter))
