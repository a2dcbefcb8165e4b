"""Open reads that no connection owns: numbers stand for them, and each ends by itself when its time is up."""

from __future__ import annotations

from collections.abc import Sequence, Set
from operator import attrgetter
from typing import Final

from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.session.open_reads import ConnectionOpenRead
from kestrel.storage.barrier import Batch

LEASE_IDS_PER_MS: Final = 4096
"""Numbers begin at the time of the start in these units: no run gives one out that an earlier run gave out, and
they stay below 2^53, which is as far as some clients can count."""


class LeaseCounts:
    """How many leased reads a connection took of each queue that nobody has ended yet, by the queue's name."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def of(self, queue: bytes) -> int:
        """Of one queue."""
        return self._counts.get(queue, 0)

    def change(self, queue: bytes, by: int) -> None:
        """So many more, or fewer."""
        count = self.of(queue) + by
        if count:
            self._counts[queue] = count
        else:
            self._counts.pop(queue, None)


class LeasedOpenReads:
    """All of a server's, by number. They survive the connection that took them, but not the server."""

    def __init__(self, started_ms: int) -> None:
        self._last_id = started_ms * LEASE_IDS_PER_MS
        self._leases: dict[int, _Lease] = {}
        self.can_be_confirmed = True
        """Whether somebody who is given a number now may still use it; not once the server stops."""

    def numbers(self, count: int) -> Sequence[int]:
        """So many that were never given out."""
        first = self._last_id + 1
        self._last_id += count
        return range(first, first + count)

    def open(self, number: int, queue: Queue, item: Item, auto_abort_ms: int, counts: LeaseCounts) -> None:
        """From now on the number stands for that item, which was taken as an open read and counts there.

        After `auto_abort_ms` it goes back to the head.
        """
        queue.add_open_read(item, _Lease(self._leases, number, ConnectionOpenRead(queue, item), auto_abort_ms, counts))

    def stop(self) -> None:
        """The server stops: nobody will be there to confirm what is given out from now on."""
        self.can_be_confirmed = False

    def confirm(self, queue: bytes, ids: Set[int]) -> tuple[int, Batch | None]:
        """Finish those that are open on that queue: how many, and their batch."""
        reads = self._open(queue, ids)
        return len(reads), reads[0].queue.confirm([read.xid for read in reads]) if reads else None

    def abort(self, queue: bytes, ids: Set[int]) -> tuple[int, Batch | None]:
        """Return those that are open on that queue to its head, in the order in which they were taken."""
        reads = self._open(queue, ids)
        return len(reads), reads[0].queue.abort([read.xid for read in reads]) if reads else None

    def _open(self, queue: bytes, ids: Set[int]) -> list[ConnectionOpenRead]:
        known = (self._leases.get(number) for number in ids)
        reads = [lease.read for lease in known if lease is not None and lease.is_of(queue)]
        return sorted(reads, key=attrgetter("xid"))  # the order of taking; who was answered first may have taken last


class _Lease:
    """One of them (`kestrel.queues.open_reads.Lease`)."""

    __slots__ = ("_counts", "_id", "_leases", "auto_abort_ms", "read")

    def __init__(
        self, leases: dict[int, _Lease], number: int, read: ConnectionOpenRead, auto_abort_ms: int, counts: LeaseCounts
    ) -> None:
        self.read = read
        self.auto_abort_ms = auto_abort_ms
        self._id = number
        self._leases = leases
        self._counts = counts
        leases[number] = self

    def is_of(self, queue: bytes) -> bool:
        return self.read.queue.name == queue and self.read.is_open

    def ended(self) -> None:
        del self._leases[self._id]
        self._counts.change(self.read.queue.name, -1)
