"""A storage whose slow parts end when a test says so, and which fails when it is told to."""

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
        """The records that survive when a commit fails."""

    def page_out(self) -> None:
        """The head is not in memory from now on, and `fill` waits."""
        self._is_paged_out = True

    @property
    def is_filling(self) -> bool:
        """Whether somebody waits for the head."""
        return self._filling is not None

    def end_fill(self, error: Exception | None = None) -> None:
        """The head is in memory again; or it cannot be read."""
        assert self._filling is not None, "nobody asked for the head"
        filling, self._filling = self._filling, None
        if error is None:
            self._is_paged_out = False
            filling.callback(None)
        else:
            filling.errback(error)

    def fill(self) -> Deferred[None] | None:
        """None, or while paged out a Deferred that fires in `end_fill`."""
        self.check()
        if not self._is_paged_out:
            return None
        assert self._filling is None, "fill was called while one was outstanding"
        self._filling = Deferred()
        return self._filling

    def peek(self) -> Item | None:
        """The head, unless it is paged out."""
        self.check()
        return None if self._is_paged_out else super().peek()

    def take(self, opened: bool) -> Item | None:
        """The head, unless it is paged out."""
        self.check()
        return None if self._is_paged_out else super().take(opened)

    def clear(self) -> None:
        """Nothing is left to be paged out."""
        super().clear()
        self._is_paged_out = False

    @property
    def mem_items(self) -> int:
        """None while paged out."""
        return 0 if self._is_paged_out else super().mem_items

    def records(self) -> list[bytes]:
        """What a restart would find: the open reads are back at the head."""
        decoded = [*(self._open[xid] for xid in self.open_xids()), *self._front]
        records = chain.from_iterable(self._records.first(len(self._records)))
        return [*(encode_item(item.data, item.add_ms, item.expiry_ms) for item in decoded), *records]


@implementer(IStorage)
class SteppedStorage(MemoryStorage):
    """A storage in memory that is slow, full or broken when a test says so.

    With `holds_commits` each commit waits for `end_commits`. `refusal` refuses puts. After a failed commit
    a queue opens at its last safe state, unless `reopen_refusal` says why it cannot be opened.
    """

    refusal: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.holds_commits = False
        self.reopen_refusal: str | None = None
        self._committing: list[tuple[SteppedQueue, list[bytes], Deferred[None]]] = []

    def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
        """The queue of that name; a fresh one after a failure."""
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
        """Append, unless `refusal` says why not."""
        if self.refusal is not None:
            raise StorageRefused(self.refusal)
        super().put(queues, data, add_ms, expiry_ms)

    def commit(self, queues: Sequence[IQueueStorage]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Safe at once, or with `holds_commits` when `end_commits` says so."""
        pending = []
        for queue in queues:
            assert isinstance(queue, SteppedQueue)
            assert all(queue is not other for other, _, _ in self._committing), "two commits of one queue"
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
        """The names of the queues whose commit waits, oldest first."""
        return [queue.name for queue, _, _ in self._committing]

    def end_commits(self, *names: bytes, error: Exception | None = None) -> None:
        """The commits of these queues, or of all, went well; or failed, and the queues are dead."""
        ending = [each for each in self._committing if not names or each[0].name in names]
        assert ending, "no such commit waits"
        self._committing = [each for each in self._committing if each not in ending]
        for queue, records, done in ending:
            if error is None:
                queue.safe = records
                done.callback(None)
            else:
                queue.failure = str(error)
                done.errback(error)
