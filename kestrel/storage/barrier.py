"""The commit barrier: no reply before its record is as safe as the queue's settings promise.

Each tick, queues that something was recorded on are *touched*; the end of the tick commits them, batch by
batch, and lets the held replies out. A queue is never committed again while a commit of it is pending: what
is recorded meanwhile waits in the queue's next batch, and fails with the earlier one, because it stood on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mypy_extensions import mypyc_attr
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.storage.interfaces import IQueueStorage, IStorage
from kestrel.storage.uncommitted_budget import PUT_BYTES, UncommittedBudget

log = Logger(__name__)

Schedule = Callable[[Callable[[], None]], None]
"""Runs something once, soon, on the reactor thread, whatever the wall clock does."""


class Batch:
    """What was recorded on one queue, which had these contents, between two commits.

    `is_settled` once it is safe or lost; `failure` is None or why it was lost.
    """

    __slots__ = ("_listeners", "began_s", "failure", "gets", "is_settled", "item_bytes", "puts", "store")

    def __init__(self, store: IQueueStorage | None = None, began_s: float = 0.0) -> None:
        self.store = store
        self.began_s = began_s
        """When the first of it was recorded."""
        self.puts = 0
        """How many items it puts."""
        self.gets = 0
        """How many were taken at once by who asked for them."""
        self.item_bytes = 0
        """What the items take that were put."""
        self.is_settled = False
        self.failure: Exception | None = None
        self._listeners: list[Callable[[], None]] | None = None

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call back once it is safe or lost; at once when it already is."""
        if self.is_settled:
            call()
        elif self._listeners is None:
            self._listeners = [call]
        else:
            self._listeners.append(call)

    def settle(self, failure: Exception | None) -> None:
        """It is safe now, or lost."""
        self.is_settled = True
        self.failure = failure
        listeners, self._listeners = self._listeners, None
        for call in listeners or ():
            call()


def combine_batches(batches: Sequence[Batch]) -> Batch | None:
    """A batch that is safe when all of these are, and lost with the first that is lost."""
    if len(batches) < 2:
        return batches[0] if batches else None
    combined = Batch()
    missing = len(batches)

    def one_settled(batch: Batch) -> None:
        nonlocal missing
        missing -= 1
        if not combined.is_settled and (batch.failure is not None or not missing):
            combined.settle(batch.failure)

    for batch in batches:
        batch.when_settled(partial(one_settled, batch))
    return combined


@mypyc_attr(allow_interpreted_subclasses=True)
class CommittedQueue(ABC):
    """What the barrier needs to know of a queue."""

    def __init__(self, storage: IStorage, store: IQueueStorage) -> None:
        self.storage = storage
        self.store = store
        self.open_batch: Batch | None = None
        """What was recorded since the last commit began."""
        self.committing: Batch | None = None
        """What is on its way."""

    @abstractmethod
    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        """All of a batch is safe."""

    @abstractmethod
    def commit_failed(self, failure: Exception) -> None:
        """The contents are dead; open them anew. Must not raise."""


class Barrier:
    """Commits what a tick recorded and releases what waits for it.

    `seconds` is what the age of a batch is measured by.
    """

    def __init__(self, schedule: Schedule, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.uncommitted = UncommittedBudget()
        self._schedule = schedule
        self._seconds = seconds
        self._is_armed = False
        self._dirty: list[CommittedQueue] = []
        self._releases: list[Callable[[], None]] = []

    def touch(self, queue: CommittedQueue) -> Batch:
        """Something was recorded on the queue: the batch that it is part of."""
        batch = queue.open_batch
        if batch is not None and batch.store is not queue.store:
            self._drop_batch(queue, batch)
            batch = None
        if batch is None:
            batch = queue.open_batch = Batch(queue.store, self._seconds())
            self._dirty.append(queue)
            if not self._is_armed:
                self._arm()
        return batch

    def count_item(self, batch: Batch, size: int) -> None:
        """An item of that many bytes is part of the batch."""
        size += PUT_BYTES
        batch.puts += 1
        batch.item_bytes += size
        self.uncommitted.bytes += size

    def _end(self, batch: Batch, failure: Exception | None) -> None:
        """The batch is safe, or lost."""
        if batch.item_bytes:
            self.uncommitted.release(batch.item_bytes)
        batch.settle(failure)

    def _drop_batch(self, queue: CommittedQueue, batch: Batch) -> None:
        """Settle the open batch of a queue that has another store since: its changes are lost."""
        queue.open_batch = None
        if queue in self._dirty:
            self._dirty.remove(queue)
        self._end(batch, QueueFailed("queue storage failed: the queue was opened anew"))

    def at_end_of_tick(self, release: Callable[[], None]) -> None:
        """Call `release` once when this tick's commits have begun."""
        self._releases.append(release)
        if not self._is_armed:
            self._arm()

    def begin_tick(self) -> None:
        """Somebody works now and will call `end_of_tick` whatever happens: until then nothing has to be scheduled."""
        self._is_armed = True

    def _arm(self) -> None:
        self._is_armed = True
        self._schedule(self.end_of_tick)

    def end_of_tick(self) -> None:
        """Commit every touched queue that is not being committed already, then release."""
        self._is_armed = False  # before anything can fail: a barrier that waits for an end would never arm again
        if not self._dirty and not self._releases:
            return
        dirty, self._dirty = self._dirty, []
        by_storage: dict[IStorage, list[CommittedQueue]] = {}
        for queue in dirty:
            batch = queue.open_batch
            if queue.committing is not None:
                self._dirty.append(queue)  # the end of that commit arms the next tick
            elif batch is not None and batch.store is not queue.store:
                self._drop_batch(queue, batch)
            elif batch is not None:
                queue.committing, queue.open_batch = batch, None
                by_storage.setdefault(queue.storage, []).append(queue)
        for storage, queues in by_storage.items():
            self._commit(storage, queues)
        releases, self._releases = self._releases, []
        for release in releases:
            try:
                release()
            except Exception:
                log.failure("What was held until the end of the tick failed")

    def _commit(self, storage: IStorage, queues: list[CommittedQueue]) -> None:
        settled: Iterable[CommittedQueue] = queues
        failure: QueueFailed | None = None
        try:
            pending = storage.commit([queue.store for queue in queues])
            if pending:
                by_store = {id(queue.store): queue for queue in queues}
                settled = by_store.values()
                for group, outcome in pending:
                    waiting = {id(store): by_store[id(store)] for store in group}
                    if len(waiting) != len(group):
                        raise ValueError("the storage named a queue twice")
                    for each in waiting:
                        del by_store[each]
                    args = (list(waiting.values()),)
                    outcome.addCallbacks(self._group_is_safe, self._group_failed, callbackArgs=args, errbackArgs=args)
        except Exception as error:  # a backend's fault must not take the tick, and so the server, down
            log.failure("The storage failed to commit")
            failure = QueueFailed(f"commit failed: {type(error).__name__}")
        now_s = self._seconds()
        for queue in settled:
            self._settle(queue, failure, now_s)

    def _group_is_safe(self, _: object, queues: list[CommittedQueue]) -> None:
        now_s = self._seconds()
        for queue in queues:
            self._settle(queue, None, now_s)

    def _group_failed(self, reason: Failure, queues: list[CommittedQueue]) -> None:
        error = reason.value
        failure = error if isinstance(error, Exception) else QueueFailed(type(error).__name__)
        for queue in queues:
            self._settle(queue, failure, 0.0)

    def _settle(self, queue: CommittedQueue, failure: Exception | None, now_s: float) -> None:
        committed, queue.committing = queue.committing, None
        later = None
        if failure is not None:
            later = queue.open_batch
            if later is not None and committed is not None and later.store is not committed.store:
                later = None  # it was recorded on other contents, which are alive
            if later is not None:
                queue.open_batch = None
                self._dirty.remove(queue)
            try:
                queue.commit_failed(failure)
            except Exception:
                log.failure("A queue whose commit failed cannot be opened anew")
        if committed is not None:
            if failure is None:
                queue.batch_is_safe(committed, now_s)
            self._end(committed, failure)
        if later is not None:
            self._end(later, failure)
        if queue.open_batch is not None and not self._is_armed:
            self._arm()
