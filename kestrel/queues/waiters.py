"""Those who wait for an item of a queue, first come, first served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kestrel.item import Item

ItemArrived = Callable[[Item | None, Exception | None], None]
"""Called once with the item; or with None when there is none; or with None and why the head cannot be read."""


class Waiter:
    """One who wants the next item of a queue.

    `opens` takes it as an open read, `peeks` leaves it in the queue. One who is not `is_blocking` only waits until
    it is known whether there is an item.
    """

    __slots__ = ("began_s", "is_blocking", "on_result", "opens", "peeks")

    def __init__(self, on_result: ItemArrived, *, opens: bool, peeks: bool, is_blocking: bool) -> None:
        self.began_s = 0.0
        """When it joined the line."""
        self.on_result = on_result
        self.opens = opens
        self.peeks = peeks
        self.is_blocking = is_blocking


class WaiterQueue:
    """Waiters in the order in which they came; leaving from the middle is as cheap as from the front.

    Nothing here takes longer where many patient ones stand in line.
    """

    def __init__(self) -> None:
        self._line: OrderedDict[Waiter, None] = OrderedDict()  # a dict searches for its first after deletions
        self._non_blocking: OrderedDict[Waiter, None] = OrderedDict()
        """Those in line who do not wait for an item to come."""
        self.has_waiters = False
        """Whether anyone stands in it."""

    def __len__(self) -> int:
        return len(self._line)

    def first(self) -> Waiter:
        """Who is served next."""
        return next(iter(self._line))

    def join(self, waiter: Waiter) -> None:
        """Stand at the end of the line."""
        self._line[waiter] = None
        self.has_waiters = True
        if not waiter.is_blocking:
            self._non_blocking[waiter] = None

    def make_non_blocking(self, waiter: Waiter) -> None:
        """That one, who may be in line, only waits from now on until it is known whether there is an item."""
        waiter.is_blocking = False
        if waiter in self._line:
            self._non_blocking[waiter] = None

    def leave(self, waiter: Waiter) -> bool:
        """Stand in it no longer. False when that one has been served already."""
        if waiter in self._line:
            del self._line[waiter]
            self.has_waiters = bool(self._line)
            self._non_blocking.pop(waiter, None)
            return True
        return False

    def non_blocking(self) -> list[Waiter]:
        """Those who do not wait for an item to come, in the order in which they ceased to."""
        return list(self._non_blocking)

    def all(self) -> list[Waiter]:
        """Everyone, in order."""
        return list(self._line)
