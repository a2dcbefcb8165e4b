"""A waiter in a queue's line whose result is a Deferred."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from kestrel.errors import KestrelError
from kestrel.item import Item
from kestrel.queues.waiters import Waiter, WaiterQueue


class WaitableQueue(Protocol):
    """A queue with a line of waiters (`kestrel.queues.queue.Queue`)."""

    waiters: WaiterQueue

    @property
    def is_head_pending(self) -> bool:
        """Whether the waiters wait for the storage or a sweep rather than for a put."""

    def join(self, waiter: Waiter) -> None:
        """Add a waiter to the line. The waiter may be served before this returns."""


L = TypeVar("L", bound=WaitableQueue)
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class QueueHandle(Protocol[L, T_co]):
    """The queue object that the program uses."""

    @property
    def is_closed(self) -> bool:
        """Whether the queue is closed or being closed."""

    def underlying(self) -> L:
        """Return the queue that has the line. Raises a `KestrelError`."""

    def deliver(self, line: L, item: Item, waiter: Waiter) -> T_co:
        """Convert an item that arrived for a waiter to the object that the program gets."""


class DeferredWaiter(Generic[L, T]):
    """A consumer that waits for an item of a queue. `result` fires once."""

    def __init__(
        self, handle: QueueHandle[L, T], clock: IReactorTime, deadline_s: float | None, *, opens: bool, peeks: bool
    ) -> None:
        self.result: Deferred[T | None] = Deferred(lambda _: self._leave())
        self._handle = handle
        self._line: L | None = None
        """The queue whose line this waiter is in, or None."""
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
            self._line = self._handle.underlying()
        except KestrelError as error:
            self._item_arrived(None, error)
        else:
            self._line.join(self._waiter)

    def _time_is_over(self) -> None:
        self._timer = None
        if self._line is None:
            self._waiter.is_blocking = False
        elif self._line.is_head_pending:
            # the queue may not be empty: the waiter is answered when the head is known
            self._line.waiters.make_non_blocking(self._waiter)
        else:
            self._item_arrived(None, None)

    def _leave(self) -> None:
        if self._line is not None:
            self._line.waiters.leave(self._waiter)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _item_arrived(self, item: Item | None, error: Exception | None) -> None:
        self._leave()
        if error is not None:
            self.result.errback(error)
        elif item is None or self._line is None:
            self.result.callback(None)
        else:
            self.result.callback(self._handle.deliver(self._line, item, self._waiter))
