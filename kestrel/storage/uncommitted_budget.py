"""The budget for items that are not committed yet (maxUncommittedBytes), and the puts that wait for it.

It slows producers down to the pace of a slow disk (backpressure). If a disk hangs, it keeps them from filling memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kestrel.errors import StorageRefused

PUT_BYTES: Final = 256
"""Memory of an uncommitted item in addition to its data: its records, its command and its reply. In bytes."""


class PutWaiter:
    """A request to put `size` bytes, which waits for room.

    `resume` is called when there is room. The room is reserved until `UncommittedBudget.begin_put` is called.
    """

    __slots__ = ("resume", "size")

    def __init__(self, size: int, resume: Callable[[], None]) -> None:
        self.size = size
        self.resume = resume


class UncommittedBudget:
    """The bytes of all items whose batch is neither safe nor lost, with `PUT_BYTES` for each item.

    There is no room once `bytes` reaches `most_bytes`. None means no limit. One item always fits. Waiters may ask for
    up to `most_bytes` more.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._waiters: OrderedDict[PutWaiter, None] = OrderedDict()
        self._waiting_bytes = 0
        self._admitted: dict[PutWaiter, None] = {}
        """Waiters that were resumed and have not begun to put."""
        self._admitted_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether a request that has begun may put more items."""
        return self.most_bytes is None or self.bytes + self._admitted_bytes < self.most_bytes

    @property
    def is_full(self) -> bool:
        """Whether a new request must wait. It also waits while others wait, and so cannot overtake them."""
        if self.most_bytes is None:
            return False
        return bool(self._waiters) or self.bytes + self._admitted_bytes >= self.most_bytes

    def wait(self, size: int, resume: Callable[[], None]) -> PutWaiter:
        """Queue a request for `size` bytes. Raises `StorageRefused` if too many bytes are waiting already."""
        if self.most_bytes is not None and self._waiters and self._waiting_bytes + size > self.most_bytes:
            raise StorageRefused("too much waits for the storage, which is slow or hangs")
        waiter = PutWaiter(size, resume)
        self._waiters[waiter] = None
        self._waiting_bytes += size
        return waiter

    def begin_put(self, waiter: PutWaiter) -> None:
        """Release the reservation of a resumed waiter, which may now put at least one item.

        The caller calls `admit_waiters` afterwards, even if the put failed.
        """
        del self._admitted[waiter]
        self._admitted_bytes -= waiter.size

    def cancel(self, waiter: PutWaiter) -> None:
        """Remove a waiter, or release its reservation if it was resumed."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self._waiting_bytes -= waiter.size
        else:
            self.begin_put(waiter)
            self.admit_waiters()

    def set_limit(self, most_bytes: int | None) -> None:
        self.most_bytes = most_bytes
        self.admit_waiters()

    def release(self, size: int) -> None:
        """Subtract `size` bytes that are now safe or lost."""
        self.bytes -= size
        if self._waiters:
            self.admit_waiters()

    def admit_waiters(self) -> None:
        """Resume waiters in order, as long as there is room."""
        while self._waiters and self.has_room:
            waiter, _ = self._waiters.popitem(last=False)
            self._waiting_bytes -= waiter.size
            self._admitted[waiter] = None
            self._admitted_bytes += waiter.size
            waiter.resume()
