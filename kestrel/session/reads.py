"""The open reads of one connection."""

from __future__ import annotations

from collections import deque

from kestrel.errors import NotThatManyOpen, QueueFailed
from kestrel.queues.queue import Queue
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IQueueStorage


class OpenRead:
    """One item that this connection holds, and the contents it was taken from."""

    __slots__ = ("contents", "queue", "xid")

    def __init__(self, queue: Queue, xid: int) -> None:
        self.queue = queue
        self.contents: IQueueStorage = queue.contents
        self.xid = xid

    @property
    def is_open(self) -> bool:
        """Whether it is still this connection's to finish."""
        contents = self.contents
        return self.queue.contents is contents and contents.failure is None and contents.is_open(self.xid)

    @property
    def is_lost(self) -> bool:
        """Whether the queue's storage failed since: the item went back to the head without being asked."""
        if self.queue.is_deleted:
            return False
        return self.queue.contents is not self.contents or self.contents.failure is not None


class OpenReads:
    """A connection's open reads, by the queue's name and oldest first.

    A read whose queue was deleted stands here until it is closed, and closing it then touches nothing: the
    client's next close must not end another read than the client means.
    """

    def __init__(self) -> None:
        self._by_queue: dict[bytes, deque[OpenRead]] = {}

    def add(self, queue: Queue, xid: int) -> None:
        """One more."""
        self._by_queue.setdefault(queue.name, deque()).append(OpenRead(queue, xid))

    def count(self, queue: bytes) -> int:
        """How many are open on the queue of that name."""
        return sum(read.is_open for read in self._by_queue.get(queue, ()))

    def _pop(self, queue: bytes) -> OpenRead | None:
        reads = self._by_queue.get(queue)
        if not reads:
            return None
        read = reads.popleft()
        if not reads:
            del self._by_queue[queue]
        return read

    def close_oldest(self, queue: bytes) -> Batch | None:
        """Confirm the oldest. Without one nothing happens; raises `QueueFailed` when it was lost."""
        read = self._pop(queue)
        if read is None:
            return None
        if read.is_lost:
            raise QueueFailed("the queue's storage failed: the item went back to the queue")
        return read.queue.confirm([read.xid]) if read.is_open else None

    def abort_oldest(self, queue: bytes) -> Batch | None:
        """Return the oldest to the head. Without one nothing happens."""
        read = self._pop(queue)
        if read is None or not read.is_open:
            return None
        read.queue.counters.canceled_transactions += 1
        return read.queue.put_back([read.xid], failed=True)

    def confirm(self, queue: bytes, count: int) -> Batch | None:
        """Confirm the `count` oldest, or raise `NotThatManyOpen` and leave all as they are."""
        reads = self._by_queue.get(queue, deque())
        if any(read.is_lost for read in reads):
            self._by_queue.pop(queue)
            raise QueueFailed("the queue's storage failed: the items went back to the queue")
        open_reads = [read for read in reads if read.is_open]
        if count <= 0 or count > len(open_reads):
            raise NotThatManyOpen("not that many reads are open")
        del self._by_queue[queue]
        if count < len(open_reads):
            self._by_queue[queue] = deque(open_reads[count:])
        return open_reads[0].queue.confirm([read.xid for read in open_reads[:count]])

    def put_back_all(self) -> None:
        """The connection ends: everything goes back to the heads, in the order in which it was taken."""
        by_queue, self._by_queue = self._by_queue, {}
        for reads in by_queue.values():
            open_reads = [read for read in reads if read.is_open]
            if open_reads:
                queue = open_reads[0].queue
                queue.counters.canceled_transactions += len(open_reads)
                queue.put_back([read.xid for read in open_reads], failed=True)
