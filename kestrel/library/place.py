"""A place in the line of a queue, and the Deferred of whoever stands there."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from kestrel.errors import KestrelError
from kestrel.item import Item
from kestrel.queues.waiters import Waiter, WaitingLine


class Line(Protocol):
    """A queue with people in line (`kestrel.queues.queue.Queue`)."""

    waiting: WaitingLine

    @property
    def is_finding_head(self) -> bool:
        """Whether those in line wait for the storage, or a sweep, rather than for an item to be put."""

    def join(self, waiter: Waiter) -> None:
        """Stand in line; the waiter may be served before this returns."""


L = TypeVar("L", bound=Line)
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Handle(Protocol[L, T_co]):
    """The queue as the program knows it."""

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""

    def behind(self) -> L:
        """The queue with the line. Raises a `KestrelError`."""

    def given(self, line: L, item: Item, waiter: Waiter) -> T_co:
        """An item of that queue arrived for one of its program's waiters: what the program gets."""


class Place(Generic[L, T]):
    """One who waits for an item of a queue: `arrival` fires once."""

    def __init__(
        self, handle: Handle[L, T], clock: IReactorTime, deadline_s: float | None, *, opens: bool, peeks: bool
    ) -> None:
        self.arrival: Deferred[T | None] = Deferred(lambda _: self._leave())
        self._handle = handle
        self._line: L | None = None
        """Where it stands; None before it stands in one."""
        patient = deadline_s is None or deadline_s > 0
        self._waiter = Waiter(self._item_arrived, opens=opens, peeks=peeks, patient=patient)
        self._timer: IDelayedCall | None = None
        if deadline_s is not None and patient:
            self._timer = clock.callLater(deadline_s, self._time_is_over)

    def join(self) -> None:
        """Stand in line, unless that is over already; the item may arrive at once."""
        if self.arrival.called:
            return
        if self._handle.is_closed:
            self._item_arrived(None, None)
            return
        try:
            self._line = self._handle.behind()
        except KestrelError as error:
            self._item_arrived(None, error)
        else:
            self._line.join(self._waiter)

    def _time_is_over(self) -> None:
        self._timer = None
        if self._line is None:
            self._waiter.patient = False
        elif self._line.is_finding_head:
            self._line.waiting.lose_patience(self._waiter)  # it may not be empty: it is answered when that is known
        else:
            self._item_arrived(None, None)

    def _leave(self) -> None:
        if self._line is not None:
            self._line.waiting.leave(self._waiter)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _item_arrived(self, item: Item | None, error: Exception | None) -> None:
        self._leave()
        if error is not None:
            self.arrival.errback(error)
        elif item is None or self._line is None:
            self.arrival.callback(None)
        else:
            self.arrival.callback(self._handle.given(self._line, item, self._waiter))
