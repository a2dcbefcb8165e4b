"""A storage in memory whose commits and fills end, or fail, when a test calls a method."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from twisted.internet.defer import Deferred
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed, StorageRefused
from kestrel.item import Item
from kestrel.journal.records import encode_item
from kestrel.storage.interfaces import IQueueStorage, IStorage
from kestrel.storage.memory import MemoryQueue, MemoryStorage


@implementer(IQueueStorage)
class SteppedQueue(MemoryQueue):
    """A queue of a `SteppedStorage`. `page_out` takes its items out of memory until `end_fill` or `clear`."""

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self._is_paged_out = False
        self._filling: Deferred[None] | None = None
        self.safe: list[bytes] = []
        """The records that survive a failed commit."""

    def page_out(self) -> None:
        """Move the head out of memory. From now on `fill` returns a Deferred."""
        self._is_paged_out = True

    @property
    def is_filling(self) -> bool:
        """True if a fill is outstanding."""
        return self._filling is not None

    def end_fill(self, error: Exception | None = None) -> None:
        """End the outstanding fill: the head is in memory again, or `error` says why it cannot be read."""
        assert self._filling is not None, "no fill is outstanding"
        filling, self._filling = self._filling, None
        if error is None:
            self._is_paged_out = False
            filling.callback(None)
        else:
            filling.errback(error)

    def fill(self) -> Deferred[None] | None:
        """Return None, or while paged out a Deferred that fires in `end_fill`."""
        self.check()
        if not self._is_paged_out:
            return None
        assert self._filling is None, "fill was called while a fill was outstanding"
        self._filling = Deferred()
        return self._filling

    def peek(self) -> Item | None:
        self.check()
        return None if self._is_paged_out else super().peek()

    def take(self, opened: bool) -> Item | None:
        self.check()
        return None if self._is_paged_out else super().take(opened)

    def clear(self) -> None:
        super().clear()
        self._is_paged_out = False

    @property
    def mem_items(self) -> int:
        return 0 if self._is_paged_out else super().mem_items

    def records(self) -> list[bytes]:
        """Return the encoded items that a restart would find, in order. The items of open reads come first."""
        decoded = [*(self._open[xid] for xid in self.open_xids()), *self._front]
        records = chain.from_iterable(self._records.first(len(self._records)))
        return [*(encode_item(item.data, item.add_ms, item.expiry_ms) for item in decoded), *records]


@implementer(IStorage)
class SteppedStorage(MemoryStorage):
    """A storage in memory that is slow, full or broken when a test asks for it.

    With `holds_commits` each commit waits for `end_commits`. `refusal` refuses puts. After a failed commit a queue is
    reopened at its last safe state, unless `reopen_refusal` says why it cannot be opened.
    """

    refusal: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.holds_commits = False
        self.reopen_refusal: str | None = None
        self._committing: list[tuple[SteppedQueue, list[bytes], Deferred[None]]] = []

    def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
        """Return the queue of that name; a fresh object after a failure."""
        queue = self._queues.get(name)
        if isinstance(queue, SteppedQueue) and queue.failure is None:
            return queue
        if queue is not None and self.reopen_refusal is not None:
            raise QueueFailed(self.reopen_refusal)
        fresh = self._queues[name] = SteppedQueue(name)
        if isinstance(queue, SteppedQueue):
            for record in queue.safe:
                fresh.append(record)
            fresh.safe = queue.safe
        return fresh

    def put(self, queues: Sequence[MemoryQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append the item, or raise StorageRefused with `refusal` if that is set."""
        if self.refusal is not None:
            raise StorageRefused(self.refusal)
        super().put(queues, data, add_ms, expiry_ms)

    def commit(self, queues: Sequence[IQueueStorage]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Commit the queues at once, or, if `holds_commits` is true, when the test calls `end_commits`. Skip failed
        queues.

        Return each queue whose commit is held, in a list, with a Deferred for its result. Other queues are not
        returned.
        """
        pending = []
        for queue in queues:
            assert isinstance(queue, SteppedQueue)
            assert all(queue is not other for other, _, _ in self._committing), "a commit of this queue is pending"
            if queue.failure is not None:
                continue
            if self.holds_commits:
                done: Deferred[None] = Deferred()
                self._committing.append((queue, queue.records(), done))
                pending.append(([queue], done))
            else:
                queue.safe = queue.records()
        return pending

    @property
    def committing(self) -> list[bytes]:
        """The names of the queues whose commits wait, oldest first."""
        return [queue.name for queue, _, _ in self._committing]

    def end_commits(self, *names: bytes, error: Exception | None = None) -> None:
        """End the commits of these queues, or without names of all. With `error` they fail, and the queues are dead."""
        ending = [each for each in self._committing if not names or each[0].name in names]
        assert ending, "no commit of these queues is pending"
        self._committing = [each for each in self._committing if each not in ending]
        for queue, records, done in ending:
            if error is None:
                queue.safe = records
                done.callback(None)
            else:
                queue.failure = str(error)
                done.errback(error)
