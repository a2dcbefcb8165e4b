"""The clients that wait for an item of a queue, in the order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kestrel.item import Item

ItemArrived = Callable[[Item | None, Exception | None], None]
"""Callback, called once with an item, with None for an empty queue, or with None and the error."""


class Waiter:
    """A get that waits for the next item of a queue.

    `opens` takes it as an open read, `peeks` leaves it in the queue. A waiter that is not `is_blocking` waits only
    until it is known whether there is an item.
    """

    __slots__ = ("began_s", "is_blocking", "on_result", "opens", "peeks")

    def __init__(self, on_result: ItemArrived, *, opens: bool, peeks: bool, is_blocking: bool) -> None:
        self.began_s = 0.0
        self.on_result = on_result
        self.opens = opens
        self.peeks = peeks
        self.is_blocking = is_blocking


class WaiterQueue:
    """Waiters in order of arrival. Removing one from the middle is as cheap as from the front.

    No operation takes longer with many blocking waiters.
    """

    def __init__(self) -> None:
        # a plain dict would search for its first key after deletions
        self._line: OrderedDict[Waiter, None] = OrderedDict()
        self._non_blocking: OrderedDict[Waiter, None] = OrderedDict()
        self.has_waiters = False

    def __len__(self) -> int:
        return len(self._line)

    def first(self) -> Waiter:
        """Return the waiter that is served next. There must be one."""
        return next(iter(self._line))

    def join(self, waiter: Waiter) -> None:
        self._line[waiter] = None
        self.has_waiters = True
        if not waiter.is_blocking:
            self._non_blocking[waiter] = None

    def make_non_blocking(self, waiter: Waiter) -> None:
        """Make a waiter, if it still waits, wait only until it is known whether there is an item."""
        waiter.is_blocking = False
        if waiter in self._line:
            self._non_blocking[waiter] = None

    def leave(self, waiter: Waiter) -> bool:
        """Remove a waiter. Return False if it no longer waits, because it was served or removed."""
        if waiter in self._line:
            del self._line[waiter]
            self.has_waiters = bool(self._line)
            self._non_blocking.pop(waiter, None)
            return True
        return False

    def non_blocking(self) -> list[Waiter]:
        """Return the non-blocking waiters, in the order in which they became non-blocking."""
        return list(self._non_blocking)

    def all(self) -> list[Waiter]:
        return list(self._line)
