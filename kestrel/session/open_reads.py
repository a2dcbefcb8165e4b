"""The open reads of one connection."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from kestrel.errors import QueueFailed, TooFewOpenReads
from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage

MAX_REMEMBERED_ENDED_READS: Final = 1000
"""Limit of remembered reads per name that ended without a close. A client that closes its reads has few of them."""


class ConnectionOpenRead:
    """One open read of this connection, and the store that the item was taken from."""

    __slots__ = ("queue", "store", "xid")

    def __init__(self, queue: Queue, item: Item) -> None:
        self.queue = queue
        self.store: IQueueStorage = queue.store
        self.xid = item.xid

    @property
    def is_open(self) -> bool:
        """Whether this connection may still end the read."""
        return self.queue.owns_store(self.store) and self.xid in self.queue.open_read_table

    @property
    def is_lost(self) -> bool:
        """Whether the queue's storage failed since, which put the item back."""
        return not self.queue.is_deleted and not self.queue.owns_store(self.store)


class _OpenReadsByName:
    """A connection's reads of the queues of one name, oldest first.

    `ended` has an entry for each read that ended without a close, True if its item was lost to this client. They are
    older than the reads in `open`: they timed out, or their store failed. When very many reads time out, the youngest
    of them may stay in `open` for some ticks more.
    """

    __slots__ = ("ended", "open")

    def __init__(self) -> None:
        self.ended: deque[bool] = deque(maxlen=MAX_REMEMBERED_ENDED_READS)
        self.open: deque[ConnectionOpenRead] = deque()

    def drop_ended(self) -> None:
        while self.open and not self.open[0].is_open:
            self.ended.append(self.open.popleft().is_lost)

    def all_open(self) -> list[ConnectionOpenRead]:
        return [read for read in self.open if read.is_open]


class ConnectionOpenReads:
    """A connection's open reads, by the queue's name, oldest first.

    A read that timed out, or whose queue was deleted or failed, stays here until the client closes it. That close ends
    no other read. Otherwise the client's next close would end a read that the client does not mean.
    """

    def __init__(self) -> None:
        self._by_queue: dict[bytes, _OpenReadsByName] = {}

    def add(self, queue: Queue, item: Item) -> ConnectionOpenRead:
        """Add the open read of an item that was taken from `queue`, and return it."""
        queue.add_open_read(item)
        read = ConnectionOpenRead(queue, item)
        self._by_queue.setdefault(queue.name, _OpenReadsByName()).open.append(read)
        return read

    def forget(self, read: ConnectionOpenRead) -> None:
        """Remove a read whose item the client never got."""
        reads = self._by_queue.get(read.queue.name)
        if reads is None:
            return
        if read in reads.open:
            reads.open.remove(read)
        elif reads.ended:
            reads.ended.pop()  # it is the youngest ended read

    def _of(self, queue: bytes) -> _OpenReadsByName | None:
        reads = self._by_queue.get(queue)
        if reads is not None:
            reads.drop_ended()
            if not reads.open and not reads.ended:
                del self._by_queue[queue]
                return None
        return reads

    def count(self, queue: bytes) -> int:
        """Return the number of this connection's open reads of the queue with that name."""
        reads = self._of(queue)
        return 0 if reads is None else len(reads.open)

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
        read = reads.open.popleft()
        return read.queue.confirm([read.xid])

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
        confirmed = reads.all_open()
        reads.open.clear()
        return confirmed[0].queue.confirm([read.xid for read in confirmed]) if confirmed else None

    def abort_oldest(self, queue: bytes) -> Batch | None:
        """Put the oldest read back at the head, and return the batch. Return None if there is none or it has ended."""
        reads = self._of(queue)
        if reads is None:
            return None
        if reads.ended:
            reads.ended.popleft()
            return None
        read = reads.open.popleft()
        return read.queue.abort([read.xid])

    def confirm(self, queue: bytes, count: int) -> Batch | None:
        """Confirm the `count` oldest reads and return the batch, or raise `TooFewOpenReads` and confirm none.

        `TooFewOpenReads` is also raised, once, if some of the reads that the client may mean have ended. `QueueFailed`
        is raised instead if the queue's storage failed and their items were lost.
        """
        reads = self._of(queue)
        if reads is None or not 0 < count <= len(reads.open) + len(reads.ended):
            raise TooFewOpenReads("not that many reads are open")
        if reads.ended:
            were_lost = any(reads.ended)
            reads.ended.clear()
            if were_lost:
                raise QueueFailed("the queue's storage failed: the items went back to the queue")
            raise TooFewOpenReads("some of these reads have ended")
        confirmed = list(islice(reads.open, count))
        if not all(read.is_open for read in confirmed):
            reads.open = deque(reads.all_open())
            raise TooFewOpenReads("some of these reads have ended")
        for _ in confirmed:
            reads.open.popleft()
        return confirmed[0].queue.confirm([read.xid for read in confirmed])

    def forget_all(self) -> None:
        """Forget all reads when the server stops. Each queue puts its open reads back itself."""
        self._by_queue.clear()

    def put_back_all(self) -> None:
        """Abort all reads: put the items back at the heads of their queues, in the order in which they were taken."""
        by_queue, self._by_queue = self._by_queue, {}
        for reads in by_queue.values():
            still_open = reads.all_open()
            if still_open:
                still_open[0].queue.abort([read.xid for read in still_open])
