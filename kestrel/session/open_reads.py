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
"""So many that ended unasked are remembered for each name; a client that closes what it opens has few."""


class ConnectionOpenRead:
    """One item that this connection holds, and the contents it was taken from."""

    __slots__ = ("queue", "store", "xid")

    def __init__(self, queue: Queue, item: Item) -> None:
        self.queue = queue
        self.store: IQueueStorage = queue.store
        self.xid = item.xid

    @property
    def is_open(self) -> bool:
        """Whether it is still this connection's to finish."""
        return self.queue.owns_store(self.store) and self.xid in self.queue.open_read_table

    @property
    def is_lost(self) -> bool:
        """Whether the queue's storage failed since: the item went back to the head without being asked."""
        return not self.queue.is_deleted and not self.queue.owns_store(self.store)


class _OpenReadsByName:
    """A connection's reads of the queues of one name, oldest first.

    `ended` stands for those that ended without being asked, each by whether its item was lost to this client; they
    are older than the rest: they ended with the contents that they were taken from, or were held for too long. Of very
    many that were held for too long the youngest end some turns before the others, and stand among `open` until then.
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
    """A connection's open reads, by the queue's name and oldest first.

    A read whose queue was deleted, or which timed out, stands here until it is closed, and closing it then touches
    nothing: the client's next close must not end another read than the client means.
    """

    def __init__(self) -> None:
        self._by_queue: dict[bytes, _OpenReadsByName] = {}

    def add(self, queue: Queue, item: Item) -> ConnectionOpenRead:
        """One more: this connection holds the item, which was taken as an open read."""
        queue.add_open_read(item)
        read = ConnectionOpenRead(queue, item)
        self._by_queue.setdefault(queue.name, _OpenReadsByName()).open.append(read)
        return read

    def forget(self, read: ConnectionOpenRead) -> None:
        """The client never had it."""
        reads = self._by_queue.get(read.queue.name)
        if reads is None:
            return
        if read in reads.open:
            reads.open.remove(read)
        elif reads.ended:
            reads.ended.pop()  # it was the last that ended

    def _of(self, queue: bytes) -> _OpenReadsByName | None:
        reads = self._by_queue.get(queue)
        if reads is not None:
            reads.drop_ended()
            if not reads.open and not reads.ended:
                del self._by_queue[queue]
                return None
        return reads

    def count(self, queue: bytes) -> int:
        """How many are open on the queue of that name."""
        reads = self._of(queue)
        return 0 if reads is None else len(reads.open)

    def close_oldest(self, queue: bytes) -> Batch | None:
        """Confirm the oldest. Without one nothing happens; raises `QueueFailed` when it was lost."""
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
        """Confirm all that are open. Without one nothing happens; raises `QueueFailed`, once, when some were lost."""
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
        """Return the oldest to the head. Without one nothing happens."""
        reads = self._of(queue)
        if reads is None:
            return None
        if reads.ended:
            reads.ended.popleft()
            return None
        read = reads.open.popleft()
        return read.queue.abort([read.xid])

    def confirm(self, queue: bytes, count: int) -> Batch | None:
        """Confirm the `count` oldest, or raise `TooFewOpenReads` and leave all as they are.

        So it does, once, when some that the client may mean ended without being asked; it raises `QueueFailed` when
        the queue's storage failed and they were lost.
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
        """The server stops: each queue puts all its reads back by itself, whoever holds them."""
        self._by_queue.clear()

    def put_back_all(self) -> None:
        """The connection ends: everything goes back to the heads, in the order in which it was taken."""
        by_queue, self._by_queue = self._by_queue, {}
        for reads in by_queue.values():
            still_open = reads.all_open()
            if still_open:
                still_open[0].queue.abort([read.xid for read in still_open])
