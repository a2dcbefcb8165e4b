"""A place in the line of a queue, and the Deferred of whoever stands there."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from kestrel.errors import KestrelError
from kestrel.item import Item
from kestrel.queues.waiters import Waiter, WaiterQueue


class WaitableQueue(Protocol):
    """A queue with people in line (`kestrel.queues.queue.Queue`)."""

    waiters: WaiterQueue

    @property
    def is_head_pending(self) -> bool:
        """Whether those in line wait for the storage, or a sweep, rather than for an item to be put."""

    def join(self, waiter: Waiter) -> None:
        """Stand in line; the waiter may be served before this returns."""


L = TypeVar("L", bound=WaitableQueue)
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class QueueHandle(Protocol[L, T_co]):
    """The queue as the program knows it."""

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""

    def underlying(self) -> L:
        """The queue with the line. Raises a `KestrelError`."""

    def deliver(self, line: L, item: Item, waiter: Waiter) -> T_co:
        """An item of that queue arrived for one of its program's waiters: what the program gets."""


class DeferredWaiter(Generic[L, T]):
    """One who waits for an item of a queue: `result` fires once."""

    def __init__(
        self, handle: QueueHandle[L, T], clock: IReactorTime, deadline_s: float | None, *, opens: bool, peeks: bool
    ) -> None:
        self.result: Deferred[T | None] = Deferred(lambda _: self._leave())
        self._handle = handle
        self._line: L | None = None
        """Where it stands; None before it stands in one."""
        is_blocking = deadline_s is None or deadline_s > 0
        self._waiter = Waiter(self._item_arrived, opens=opens, peeks=peeks, is_blocking=is_blocking)
        self._timer: IDelayedCall | None = None
        if deadline_s is not None and is_blocking:
            self._timer = clock.callLater(deadline_s, self._time_is_over)

    def join(self) -> None:
        """Stand in line, unless that is over already; the item may arrive at once."""
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
            self._line.waiters.make_non_blocking(self._waiter)  # it may not be empty: it is answered when that is known
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
