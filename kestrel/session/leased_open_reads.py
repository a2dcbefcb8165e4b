"""Open reads that belong to no connection. They have ids, and each is put back when its time is over."""

from __future__ import annotations

from collections.abc import Sequence, Set
from operator import attrgetter
from typing import Final

from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.storage.barrier import Batch

LEASE_IDS_PER_MS: Final = 4096
"""Unit of the first id, which is derived from the start time. No two runs use the same id, and ids stay below 2^53, the
largest integer that some clients can represent.
"""


class LeaseCounts:
    """Numbers of a connection's unfinished leased reads, by the queue's name."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def of(self, queue: bytes) -> int:
        """Return the number of leased reads of `queue`."""
        return self._counts.get(queue, 0)

    def change(self, queue: bytes, by: int) -> None:
        """Add `by`, which may be negative, to the count of `queue`."""
        count = self.of(queue) + by
        if count:
            self._counts[queue] = count
        else:
            self._counts.pop(queue, None)


class LeasedOpenReads:
    """A server's leased reads, by id. They survive the connection that took them, but not the server."""

    def __init__(self, started_ms: int) -> None:
        self._last_id = started_ms * LEASE_IDS_PER_MS
        self._leases: dict[int, _Lease] = {}
        self.can_be_confirmed = True
        """False once the server is stopping: clients can no longer confirm reads."""

    def numbers(self, count: int) -> Sequence[int]:
        """Return the next `count` ids, which are not used again."""
        first = self._last_id + 1
        self._last_id += count
        return range(first, first + count)

    def open(self, number: int, queue: Queue, item: Item, auto_abort_ms: int, counts: LeaseCounts) -> None:
        """Add `item`, which was taken as an open read, to the leases under the id `number`.

        The caller has already counted it in `counts`; the end of the lease subtracts it. After `auto_abort_ms` the item
        goes back to the head.
        """
        queue.add_open_read(item, _Lease(self._leases, number, queue, item.xid, auto_abort_ms, counts))

    def stop(self) -> None:
        """Record that the server is stopping. From now on leased gets return no items, because clients could not
        confirm them.
        """
        self.can_be_confirmed = False

    def confirm(self, queue: bytes, ids: Set[int]) -> tuple[int, Batch | None]:
        """Confirm the reads among `ids` that are open on `queue`. Return their number, and the batch or None."""
        reads = self._open(queue, ids)
        return len(reads), reads[0].queue.confirm([read.xid for read in reads]) if reads else None

    def abort(self, queue: bytes, ids: Set[int]) -> tuple[int, Batch | None]:
        """Put the reads among `ids` that are open on `queue` back, in the order in which they were taken.

        Return their number, and the batch or None.
        """
        reads = self._open(queue, ids)
        return len(reads), reads[0].queue.abort([read.xid for read in reads]) if reads else None

    def _open(self, queue: bytes, ids: Set[int]) -> list[_Lease]:
        known = (self._leases.get(number) for number in ids)
        reads = [lease for lease in known if lease is not None and lease.is_of(queue)]
        # the order of taking: ids follow the order of the replies, which may differ
        return sorted(reads, key=attrgetter("xid"))


class _Lease:
    """One leased read (`kestrel.queues.open_reads.Lease`)."""

    __slots__ = ("_counts", "_id", "_leases", "_store", "auto_abort_ms", "queue", "xid")

    def __init__(
        self,
        leases: dict[int, _Lease],
        number: int,
        queue: Queue,
        xid: int,
        auto_abort_ms: int,
        counts: LeaseCounts,
    ) -> None:
        self.queue = queue
        self.xid = xid
        self.auto_abort_ms = auto_abort_ms
        self._store = queue.store
        self._id = number
        self._leases = leases
        self._counts = counts
        leases[number] = self

    def is_of(self, name: bytes) -> bool:
        """Return True if it is an open read of the queue `name`."""
        queue = self.queue
        return queue.name == name and queue.owns_store(self._store) and self.xid in queue.open_read_table

    def ended(self) -> None:
        del self._leases[self._id]
        self._counts.change(self.queue.name, -1)
