"""The open reads of one queue, and their timeouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime

from kestrel.item import Item
from kestrel.queues.timer import CLOCK_TOLERANCE_S, Timer

MAX_TIMED_OUT_PER_SLICE: Final = 5000

TIMEOUT_GROUPING_RATIO: Final = 0.1
"""Part of the timeout of the first due read. Reads due within it are put back with that read, to keep their order."""

MAX_TIMEOUT_GROUPING_S: Final = 1.0
"""Limit of the extra time that a read may stay open to be put back with others."""


class Lease(Protocol):
    """An open read with its own timeout. It is told when the read ends, for any reason."""

    auto_abort_ms: int

    def ended(self) -> None:
        """Record that the read has ended."""


class _QueueOpenRead:
    __slots__ = ("due_s", "item", "lease", "opened_s")

    def __init__(self, item: Item, opened_s: float, lease: Lease | None) -> None:
        self.item = item
        self.opened_s = opened_s
        self.lease = lease
        self.due_s: float | None = None

    def use_timeout(self, timeout_s: float | None) -> None:
        """Set the timeout to `timeout_s`, or to the lease's own if that is shorter."""
        if self.lease is not None:
            own_s = self.lease.auto_abort_ms / 1000
            timeout_s = own_s if timeout_s is None else min(timeout_s, own_s)
        self.due_s = None if timeout_s is None else self.opened_s + timeout_s


class QueueOpenReads:
    """The open reads of a queue by xid, oldest first. `timed_out` is called with the xids of reads that are too old."""

    def __init__(self, clock: IReactorTime, timed_out: Callable[[list[int]], None]) -> None:
        self._clock = clock
        self._timed_out = timed_out
        self._timeout_s: float | None = None
        self._reads: dict[int, _QueueOpenRead] = {}
        self._due: list[tuple[float, int]] = []
        """A heap of due times and xids, which may include reads that have ended."""
        self._late: dict[int, None] = {}
        """Reads that are due, and wait for others that soon will be."""
        self._ending: list[int] = []
        """Reads that are being put back, in the order in which they were taken."""
        self._timer = Timer(clock, self._look)
        self._look_s = 0.0

    def __contains__(self, xid: int) -> bool:
        return xid in self._reads

    def __iter__(self) -> Iterator[int]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)

    def opened(self, item: Item, lease: Lease | None = None) -> None:
        """Add the open read of `item`. With a lease, the shorter of its timeout and the queue's applies."""
        read = self._reads[item.xid] = _QueueOpenRead(item, self._clock.seconds(), lease)
        if lease is None and self._timeout_s is None:
            return
        read.use_timeout(self._timeout_s)
        assert read.due_s is not None
        heappush(self._due, (read.due_s, item.xid))
        if len(self._due) > 2 * len(self._reads) + MAX_TIMED_OUT_PER_SLICE:
            self._forget_ended()
        self._look_at(read.due_s)

    def ended(self, xid: int) -> Item | None:
        """Remove an open read. Return its item, or None if it was not open."""
        read = self._reads.pop(xid, None)
        if read is None:
            return None
        if read.lease is not None:
            read.lease.ended()
        return read.item

    def clear(self) -> None:
        """End all open reads."""
        reads, self._reads = self._reads, {}
        self._due.clear()
        self._late.clear()
        self._ending.clear()
        self._timer.stop()
        for read in reads.values():
            if read.lease is not None:
                read.lease.ended()

    def use_timeout(self, timeout_ms: int | None) -> None:
        """Set the timeout of all reads, including those already open. None means that only leases time out."""
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            for read in self._reads.values():
                read.use_timeout(timeout_s)
            self._late.clear()
            self._ending.clear()
            self._forget_ended()
            self._timer.stop()
            if self._due:
                self._look_at(self._clock.seconds())

    def _forget_ended(self) -> None:
        self._due = [(read.due_s, xid) for xid, read in self._reads.items() if read.due_s is not None]
        heapify(self._due)

    def _look_at(self, due_s: float) -> None:
        if not self._timer.is_running or due_s < self._look_s:
            self._look_s = due_s
            self._timer.start(max(0.0, due_s - self._clock.seconds()))

    def _next_due(self) -> float | None:
        """Return the time at which the next open read is due, or None."""
        while self._due:
            due_s, xid = self._due[0]
            read = self._reads.get(xid)
            if read is not None and read.due_s == due_s:
                return due_s
            heappop(self._due)
        return None

    def _look(self) -> None:
        now_s = self._clock.seconds()
        if self._ending or self._all_late_are_found(now_s):
            self._end_some()
        next_s = now_s if self._ending else self._next_due()
        if next_s is not None:
            self._look_at(next_s)

    def _all_late_are_found(self, now_s: float) -> bool:
        """Look for a bounded number of due reads. Return True if there are some, and no further one to wait for."""
        found = 0
        while (next_s := self._next_due()) is not None and next_s <= now_s + CLOCK_TOLERANCE_S:
            if found == MAX_TIMED_OUT_PER_SLICE:
                return False
            self._late[heappop(self._due)[1]] = None
            found += 1
        late = [xid for xid in self._late if xid in self._reads]
        if not late:
            self._late.clear()
            return False
        if next_s is not None and next_s <= self._all_back_s(self._reads[late[0]]):
            return False
        self._late.clear()
        self._ending = sorted(late)  # xids increase in the order of taking
        return True

    @staticmethod
    def _all_back_s(first: _QueueOpenRead) -> float:
        """Return the time until which the first due read may wait for others."""
        assert first.due_s is not None
        return first.due_s + min(MAX_TIMEOUT_GROUPING_S, TIMEOUT_GROUPING_RATIO * (first.due_s - first.opened_s))

    def _end_some(self) -> None:
        """End the youngest due reads first. Older ones are put in front of them in a later tick."""
        ending = [xid for xid in self._ending[-MAX_TIMED_OUT_PER_SLICE:] if xid in self._reads]
        del self._ending[-MAX_TIMED_OUT_PER_SLICE:]
        if ending:
            self._timed_out(ending)
