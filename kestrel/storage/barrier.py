"""The commit barrier: a reply is sent only when its record is as safe as the queue's settings promise.

`Barrier.touch` marks a queue when a change to it is recorded. The end of the tick commits all marked queues, and then
calls the functions that wait for the end of the tick. While a commit of a queue is pending, its further changes go into
its next batch. That batch fails if the pending one does, because it depends on it. Queues that share files, which have
the same `commit_unit`, are committed together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mypy_extensions import mypyc_attr
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.storage.failures import error_of
from kestrel.storage.interfaces import IQueueStorage, IStorage
from kestrel.storage.uncommitted_budget import PUT_BYTES, UncommittedBudget

log = Logger(__name__)

Schedule = Callable[[Callable[[], None]], None]
"""Runs a function once, soon, on the reactor thread, even if the wall clock jumps."""


class Batch:
    """The changes recorded on one queue between two commits.

    `store` is the queue store that they were recorded on. `is_settled` is true once they are safe or lost. `failure` is
    the reason why they were lost, or None. Until then, the items put count in the budget `uncommitted`.
    """

    __slots__ = (
        "_item_bytes",
        "_listeners",
        "_uncommitted",
        "began_s",
        "failure",
        "gets",
        "is_settled",
        "puts",
        "store",
    )

    def __init__(
        self,
        store: IQueueStorage | None = None,
        began_s: float = 0.0,
        uncommitted: UncommittedBudget | None = None,
    ) -> None:
        self.store = store
        self.began_s = began_s
        """Time of the first change, in the barrier's seconds."""
        self.puts = 0
        """Number of items put."""
        self.gets = 0
        """Number of items taken without waiting."""
        self._item_bytes = 0
        """Bytes of the items put, with `PUT_BYTES` for each."""
        self._uncommitted = uncommitted
        self.is_settled = False
        self.failure: Exception | None = None
        self._listeners: list[Callable[[], None]] | None = None

    def add_put(self, size: int) -> None:
        """Count an item that was put, with `size` bytes of data."""
        self.puts += 1
        if self._uncommitted is not None:
            self._item_bytes += size + PUT_BYTES
            self._uncommitted.bytes += size + PUT_BYTES

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call `call` once the batch is safe or lost, at once if it already is."""
        if self.is_settled:
            call()
        elif self._listeners is None:
            self._listeners = [call]
        else:
            self._listeners.append(call)

    def settle(self, failure: Exception | None) -> None:
        """Mark the batch as safe, or as lost if `failure` is given, and call its listeners."""
        if self._uncommitted is not None and self._item_bytes:
            self._uncommitted.release(self._item_bytes)
        self.is_settled = True
        self.failure = failure
        listeners, self._listeners = self._listeners, None
        for call in listeners or ():
            call()

    def settle_with(self, other: Batch) -> None:
        """Settle this batch in the same way as `other`, once that is settled."""
        other.when_settled(lambda: self.settle(other.failure))


def combine_batches(batches: Sequence[Batch]) -> Batch | None:
    """Return a batch that is safe when all `batches` are, and lost as soon as one of them is. Return None if there are
    none.
    """
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
    """A queue as the barrier sees it."""

    def __init__(self, storage: IStorage, store: IQueueStorage) -> None:
        self.storage = storage
        self.store = store
        self.open_batch: Batch | None = None
        """The batch of the changes recorded since the last commit began."""
        self.committing: Batch | None = None
        """The batch whose commit is pending."""

    @abstractmethod
    def batch_is_safe(self, batch: Batch, now_s: float) -> None:
        """React to a successful commit. `now_s` is the current time, in the barrier's seconds."""

    @abstractmethod
    def commit_failed(self, failure: Exception) -> None:
        """Reopen the store, which has failed. Must not raise."""


class Barrier:
    """Commits the changes of each tick, then calls the functions that wait for the end of the tick.

    `schedule` calls `end_of_tick` if `begin_tick` was not called. `seconds` measures the age of a batch.
    """

    def __init__(self, schedule: Schedule, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.uncommitted = UncommittedBudget()
        self._schedule = schedule
        self._seconds = seconds
        self.ticks = 0
        """Number of ticks that have ended."""
        self.is_in_tick = False
        """True from `begin_tick` to `end_of_tick`."""
        self._end_is_scheduled = False
        self._touched: list[CommittedQueue] = []
        self._committing_units: dict[object, int] = {}
        """Number of pending commits of each `commit_unit`."""
        self._releases: list[Callable[[], None]] = []

    def touch(self, queue: CommittedQueue) -> Batch:
        """Return the batch for a change that is being recorded on the queue, and commit it at the end of the tick."""
        batch = queue.open_batch
        if batch is not None:
            if batch.store is queue.store:
                return batch
            self._drop_batch(queue, batch)
        batch = queue.open_batch = Batch(queue.store, self._seconds(), self.uncommitted)
        self._touched.append(queue)
        if not self._end_is_scheduled:
            self.schedule_end()
        return batch

    def _drop_batch(self, queue: CommittedQueue, batch: Batch) -> None:
        """Settle the open batch of a queue that has another store since: its changes are lost."""
        queue.open_batch = None
        if queue in self._touched:
            self._touched.remove(queue)
        batch.settle(QueueFailed("queue storage failed: the queue was opened anew"))

    def at_end_of_tick(self, release: Callable[[], None]) -> None:
        """Call `release` once, after the commits of this tick have begun."""
        self._releases.append(release)
        if not self._end_is_scheduled:
            self.schedule_end()

    def begin_tick(self) -> None:
        """Announce that the caller will call `end_of_tick` in any case, so that none needs to be scheduled."""
        self._end_is_scheduled = self.is_in_tick = True

    def schedule_end(self) -> None:
        """Schedule the end of this tick, unless that is done or announced."""
        if not self._end_is_scheduled:
            self._end_is_scheduled = True
            self._schedule(self.end_of_tick)

    def end_of_tick(self) -> None:
        """Commit every touched queue that has no pending commit, then call the waiting functions."""
        # Before anything can fail: while this is true, no further end of a tick is scheduled.
        self._end_is_scheduled = self.is_in_tick = False
        self.ticks += 1
        if not self._touched and not self._releases:
            return
        touched, self._touched = self._touched, []
        by_storage: dict[IStorage, tuple[list[CommittedQueue], list[IQueueStorage]]] = {}
        for queue in touched:
            batch = queue.open_batch
            if queue.committing is not None or getattr(queue.store, "commit_unit", None) in self._committing_units:
                self._touched.append(queue)  # the end of that commit arms the next tick
            elif batch is not None and batch.store is not queue.store:
                self._drop_batch(queue, batch)
            elif batch is not None:
                queue.committing, queue.open_batch = batch, None
                queues, stores = by_storage.setdefault(queue.storage, ([], []))
                queues.append(queue)
                stores.append(queue.store)
        for storage, (queues, stores) in by_storage.items():
            self._commit(storage, queues, stores)
        releases, self._releases = self._releases, []
        for release in releases:
            try:
                release()
            except Exception:
                log.failure("A function that waited for the end of the tick failed")

    def _commit(self, storage: IStorage, queues: list[CommittedQueue], stores: list[IQueueStorage]) -> None:
        settled: Iterable[CommittedQueue] = queues
        failure: QueueFailed | None = None
        for queue in queues:
            unit = getattr(queue.store, "commit_unit", None)
            if unit is not None:
                self._committing_units[unit] = self._committing_units.get(unit, 0) + 1
        try:
            pending = storage.commit(stores)
            if pending:
                by_store = {id(queue.store): queue for queue in queues}
                settled = by_store.values()
                for group, outcome in pending:
                    waiting = {id(store): by_store[id(store)] for store in group}
                    if len(waiting) != len(group):
                        raise ValueError("the storage named a queue twice")
                    for each in waiting:
                        del by_store[each]
                    outcome.addBoth(self._group_ended, list(waiting.values()))
        except Exception as error:  # an error of a backend must not stop the tick, and with it the server
            log.failure("The storage raised an error in commit")
            failure = QueueFailed(f"commit failed: {type(error).__name__}")
        now_s = self._seconds()
        for queue in settled:
            self._commit_ended(queue, failure, now_s)

    def _group_ended(self, result: object, queues: list[CommittedQueue]) -> None:
        failure = error_of(result) if isinstance(result, Failure) else None
        now_s = self._seconds()
        for queue in queues:
            self._commit_ended(queue, failure, now_s)

    def _commit_ended(self, queue: CommittedQueue, failure: Exception | None, now_s: float) -> None:
        committed, queue.committing = queue.committing, None
        unit = None if committed is None else getattr(committed.store, "commit_unit", None)
        if unit is not None:
            self._committing_units[unit] -= 1
            if not self._committing_units[unit]:
                del self._committing_units[unit]
        later = None
        if failure is not None:
            later = queue.open_batch
            if later is not None and committed is not None and later.store is not committed.store:
                later = None  # it was recorded on the reopened store, which works
            if later is not None:
                queue.open_batch = None
                self._touched.remove(queue)
            try:
                queue.commit_failed(failure)
            except Exception:
                log.failure("A queue cannot be reopened after a failed commit")
        if committed is not None:
            if failure is None:
                queue.batch_is_safe(committed, now_s)
            committed.settle(failure)
        if later is not None:
            later.settle(failure)
        if queue.open_batch is not None or (unit is not None and self._touched):
            self.schedule_end()
