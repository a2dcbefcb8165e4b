"""The open reads of one connection, and those that belong to no connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from itertools import islice
from operator import attrgetter
from typing import Final

from kestrel.errors import OpenReadExists, QueueFailed, TooFewOpenReads, TooManyOpenReads
from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage

MAX_REMEMBERED_ENDED_READS: Final = 1000
"""Limit of remembered reads per name that ended without a close. A client that closes its reads has few of them."""


class _ReadsOfQueue:
    """A connection's reads of the queue of one name, oldest first.

    `ended` has an entry for each read that ended without a close, True if its item was lost to this client. They are
    older than the reads in `xids`: they timed out, or their store failed. When very many reads time out, the youngest
    of them may stay in `xids` for some ticks more.
    """

    __slots__ = ("ended", "queue", "store", "xids")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.store: IQueueStorage = queue.store
        """The store that the items of `xids` were taken from."""
        self.xids: deque[int] = deque()
        self.ended: deque[bool] = deque(maxlen=MAX_REMEMBERED_ENDED_READS)

    def drop_ended(self) -> None:
        queue, xids = self.queue, self.xids
        if not queue.owns_store(self.store):
            # the failure of a store puts its items back
            self.ended.extend([not queue.is_deleted] * len(xids))
            xids.clear()
        while xids and xids[0] not in queue.open_read_table:
            xids.popleft()
            self.ended.append(False)

    def use(self, queue: Queue) -> None:
        """Use another queue or store of that name from now on."""
        self.drop_ended()
        self.queue, self.store = queue, queue.store

    def open_xids(self) -> list[int]:
        if not self.queue.owns_store(self.store):
            return []
        return [xid for xid in self.xids if xid in self.queue.open_read_table]


class ConnectionOpenReads:
    """A connection's open reads, by the queue's name, oldest first.

    A read that timed out, or whose queue was deleted or failed, stays here until the client closes it. That close ends
    no other read. Otherwise the client's next close would end a read that the client does not mean.
    """

    def __init__(self) -> None:
        self._by_queue: dict[bytes, _ReadsOfQueue] = {}

    def add(self, queue: Queue, item: Item) -> None:
        """Add the open read of an item that was taken from `queue`."""
        queue.add_open_read(item)
        reads = self._by_queue.get(queue.name)
        if reads is None:
            reads = self._by_queue[queue.name] = _ReadsOfQueue(queue)
        elif reads.store is not queue.store:
            reads.use(queue)
        reads.xids.append(item.xid)

    def forget(self, queue: bytes, store: IQueueStorage, xid: int) -> None:
        """Remove a read of `store`, whose item the client never got."""
        reads = self._by_queue.get(queue)
        if reads is None:
            return
        if reads.store is store and xid in reads.xids:
            reads.xids.remove(xid)
        elif reads.ended:
            reads.ended.pop()  # it is the youngest ended read

    def _of(self, queue: bytes) -> _ReadsOfQueue | None:
        reads = self._by_queue.get(queue)
        if reads is not None:
            reads.drop_ended()
            if not reads.xids and not reads.ended:
                del self._by_queue[queue]
                return None
        return reads

    def check_take(self, queue: bytes, opens: bool, most: int) -> None:
        """Check that an item of the queue may be taken while the connection has at most `most` open reads of it.

        Raises `TooManyOpenReads`, or `OpenReadExists` if the read is not to be opened.
        """
        count = self.count(queue) if queue in self._by_queue else 0
        if opens and count >= most:
            raise TooManyOpenReads(f"too many open reads; limit={most}")
        if count and not opens:
            raise OpenReadExists("a read of this queue is open")

    @property
    def has_any(self) -> bool:
        """Whether there may be open reads of any queue."""
        return bool(self._by_queue)

    def count(self, queue: bytes) -> int:
        """Return the number of this connection's open reads of the queue with that name."""
        reads = self._of(queue)
        return 0 if reads is None else len(reads.xids)

    def total(self) -> int:
        """Return the number of this connection's open reads of all queues."""
        return sum(map(self.count, list(self._by_queue)))

    def close_oldest(self, queue: bytes) -> Batch | None:
        """Confirm the oldest read, and return the batch. Return None if there is none or it has ended.

        Raises `QueueFailed` if the queue's storage failed and the item went back to the queue.
        """
        reads = self._of(queue)
        if reads is None:
            return None
        if reads.ended:
            if reads.ended.popleft():
                raise QueueFailed("the queue's storage failed: the item went back to the queue")
            return None
        xid = reads.xids.popleft()
        if not reads.xids:
            del self._by_queue[queue]
        return reads.queue.confirm([xid])

    def close_all(self, queue: bytes) -> Batch | None:
        """Confirm all open reads, and return the batch, or None if there are none.

        If the queue's storage failed and items went back to the queue, raises `QueueFailed`, once, and confirms none.
        """
        reads = self._of(queue)
        if reads is None:
            return None
        were_lost = any(reads.ended)
        reads.ended.clear()
        if were_lost:
            raise QueueFailed("the queue's storage failed: the items went back to the queue")
        confirmed = reads.open_xids()
        reads.xids.clear()
        return reads.queue.confirm(confirmed) if confirmed else None

    def abort_oldest(self, queue: bytes) -> Batch | None:
        """Put the oldest read back at the head, and return the batch. Return None if there is none or it has ended."""
        reads = self._of(queue)
        if reads is None:
            return None
        if reads.ended:
            reads.ended.popleft()
            return None
        return reads.queue.abort([reads.xids.popleft()])

    def confirm(self, queue: bytes, count: int) -> Batch | None:
        """Confirm the `count` oldest reads and return the batch, or raise `TooFewOpenReads` and confirm none.

        `TooFewOpenReads` is also raised, once, if some of the reads that the client may mean have ended. `QueueFailed`
        is raised instead if the queue's storage failed and their items were lost.
        """
        reads = self._of(queue)
        if reads is None or not 0 < count <= len(reads.xids) + len(reads.ended):
            raise TooFewOpenReads("not that many reads are open")
        if reads.ended:
            were_lost = any(reads.ended)
            reads.ended.clear()
            if were_lost:
                raise QueueFailed("the queue's storage failed: the items went back to the queue")
            raise TooFewOpenReads("some of these reads have ended")
        confirmed = list(islice(reads.xids, count))
        if not all(xid in reads.queue.open_read_table for xid in confirmed):
            reads.xids = deque(reads.open_xids())
            raise TooFewOpenReads("some of these reads have ended")
        for _ in confirmed:
            reads.xids.popleft()
        return reads.queue.confirm(confirmed)

    def forget_all(self) -> None:
        """Forget all reads when the server stops. Each queue puts its open reads back itself."""
        self._by_queue.clear()

    def put_back_all(self) -> None:
        """Abort all reads: put the items back at the heads of their queues, in the order in which they were taken."""
        by_queue, self._by_queue = self._by_queue, {}
        for reads in by_queue.values():
            still_open = reads.open_xids()
            if still_open:
                reads.queue.abort(still_open)


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

    def total(self) -> int:
        """Return the number of leased reads of all queues."""
        return sum(self._counts.values())

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
