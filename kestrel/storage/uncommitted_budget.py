"""maxUncommittedBytes: how much has been put that is not safe yet, and who waits to put more.

A disk that syncs slowly slows those who put down to its pace; one that hangs must not let them fill the memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kestrel.errors import StorageRefused

PUT_BYTES: Final = 256
"""What an item takes besides its data until it is safe: its records, its command, the reply that is held."""


class PutWaiter:
    """Somebody wants to put `size` bytes. `resume` is called when there is room, which is kept until it `begin_put`."""

    __slots__ = ("resume", "size")

    def __init__(self, size: int, resume: Callable[[], None]) -> None:
        self.size = size
        self.resume = resume


class UncommittedBudget:
    """Items of all queues that are in no batch that is safe or lost, each with `PUT_BYTES` besides its data.

    There is no more room at `most_bytes` (None: no limit), but always for one item; as much again may wait in line.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._waiters: OrderedDict[PutWaiter, None] = OrderedDict()
        self._waiting_bytes = 0
        self._admitted: dict[PutWaiter, None] = {}
        """Who may go on and has not begun."""
        self._admitted_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether who has begun may put more."""
        return self.most_bytes is None or self.bytes + self._admitted_bytes < self.most_bytes

    @property
    def is_full(self) -> bool:
        """Whether who comes now has to wait: nobody goes before those who wait."""
        return bool(self._waiters) or not self.has_room

    def wait(self, size: int, resume: Callable[[], None]) -> PutWaiter:
        """Stand in line with so many bytes. Raises `StorageRefused` when there is too much in it already."""
        if self.most_bytes is not None and self._waiters and self._waiting_bytes + size > self.most_bytes:
            raise StorageRefused("too much waits for the storage, which is slow or hangs")
        waiter = PutWaiter(size, resume)
        self._waiters[waiter] = None
        self._waiting_bytes += size
        return waiter

    def begin_put(self, waiter: PutWaiter) -> None:
        """Who may go on does so, with one item in any case. `admit_waiters` follows, whatever came of it."""
        del self._admitted[waiter]
        self._admitted_bytes -= waiter.size

    def cancel(self, waiter: PutWaiter) -> None:
        """Wait no longer."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self._waiting_bytes -= waiter.size
        else:
            self.begin_put(waiter)
            self.admit_waiters()

    def set_limit(self, most_bytes: int | None) -> None:
        """Another limit holds from now on."""
        self.most_bytes = most_bytes
        self.admit_waiters()

    def release(self, size: int) -> None:
        """So many bytes are safe, or lost."""
        self.bytes -= size
        if self._waiters:
            self.admit_waiters()

    def admit_waiters(self) -> None:
        """As many go on as there is room for now."""
        while self._waiters and self.has_room:
            waiter, _ = self._waiters.popitem(last=False)
            self._waiting_bytes -= waiter.size
            self._admitted[waiter] = None
            self._admitted_bytes += waiter.size
            waiter.resume()
