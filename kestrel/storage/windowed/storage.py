"""A storage over a database: all its queues, the pending deletions, and the state that a restart would load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.errors import ItemTooLarge, OwnershipLost, QueueFailed, StorageError, StorageRefused
from kestrel.storage.database import IDatabase, QueueChanges, StoredItem, StoredQueue
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.interfaces import IQueueStorage, IStorage, SettingsFor
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.windowed.queue import WindowedQueue
from kestrel.storage.windowed.writer import BatchWriter

log = Logger(__name__)

CAPABILITIES: Final = frozenset({"durable", "errors_kept"})
"""The capabilities of these storages, for `IStorageFactory.capabilities`."""

UNUSED_SETTINGS: Final = frozenset(
    {
        "default_journal_size_bytes",
        "max_journal_size_bytes",
        "min_journal_compact_delay_ms",
        "disable_aggressive_rewrites",
        "sync_journal_ms",
    }
)
"""Queue settings that have no effect on these storages, for a factory's `unused_settings`."""

LARGEST_ITEM_BYTES: Final = 16 << 20

LAST_WRITES_S: Final = 10.0
"""Longest wait of `close` for a database that is away, in seconds."""


@implementer(IStorage)
class WindowedStorage:
    """All queues of a database (`IStorage`).

    `largest_item_bytes` limits the data of an item. It must be at least 16 MiB.
    """

    def __init__(
        self,
        database: IDatabase,
        clock: IReactorTime,
        memory: MemoryLimit,
        *,
        largest_item_bytes: int = LARGEST_ITEM_BYTES,
    ) -> None:
        self._database = database
        self._clock = clock
        self._limit = memory
        self._largest_item_bytes = largest_item_bytes
        self._writer = BatchWriter(database, clock, self._writer_ended)
        self._queues: dict[bytes, WindowedQueue] = {}
        self._stored: dict[bytes, StoredQueue] = {}
        """The queues as the database has them, and as a restart would load them."""
        self._deletions: dict[WindowedQueue, Deferred[None]] = {}
        """Deferreds for the commits that name a deleted queue. A deletion is written before the name is used again."""
        self._deleting: dict[bytes, int] = {}
        """Number of deletions that the database does not have yet, by name."""
        self._is_closing = False
        self.ended: Deferred[StorageError] = Deferred()
        """Fires when nothing more will be written, for example because another server has taken the database."""

    @property
    def refusal(self) -> str | None:
        return self._writer.refusal

    def start(self, settings_for: SettingsFor) -> Deferred[dict[bytes, IQueueStorage | Failure]]:
        """Load the list of queues from the database. Items are read later."""

        def listed(queues: Sequence[StoredQueue]) -> dict[bytes, IQueueStorage | Failure]:
            for stored in queues:
                self._stored[stored.name] = stored
                self._open(stored, settings_for(stored.name))
            return dict(self._queues)

        def not_listed(failure: Failure) -> Failure:
            error = error_of(failure)
            reason = f"the queues of the database cannot be listed: {reason_of(error)}"
            return failure if isinstance(error, StorageError) else Failure(StorageError(reason))

        return maybeDeferred(self._database.list_queues).addCallbacks(listed, not_listed)

    def queue(self, name: bytes, settings: QueueSettings) -> WindowedQueue:
        queue = self._queues.get(name)
        if queue is not None and queue.failure is None:
            queue.settings = settings
            return queue
        if self._writer.end is not None:
            raise QueueFailed(self._writer.end)
        stored = None if name in self._deleting else self._stored.get(name)
        return self._open(stored or StoredQueue(name, 0, 0, 0, 0), settings, is_new=stored is None)

    def _open(self, stored: StoredQueue, settings: QueueSettings, is_new: bool = False) -> WindowedQueue:
        queue = WindowedQueue(stored, is_new, settings, self._read_after, self._check_put, self._limit)
        self._queues[stored.name] = queue
        return queue

    def _read_after(self, name: bytes, position: int, n: int, max_bytes: int) -> Deferred[Sequence[StoredItem]]:
        if self._is_closing:
            return fail(QueueFailed("the storage is closed"))
        return maybeDeferred(self._database.read_after, name, position, n, max_bytes).addErrback(self._read_failed)

    def _read_failed(self, failure: Failure) -> Failure:
        if isinstance(failure.value, OwnershipLost):
            self._writer.stop(failure.value)
        return failure

    # Changes.

    def _check_put(self, size: int) -> None:
        if size > self._largest_item_bytes:
            raise ItemTooLarge(f"an item holds at most {self._largest_item_bytes} bytes")
        refusal = self.refusal
        if refusal is not None:
            raise StorageRefused(refusal)

    def put(self, queues: Sequence[WindowedQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append an item to each queue. Usually one batch brings it to all of them."""
        self._check_put(len(data))
        for queue in queues:
            queue.check_append()
        for queue in queues:
            queue.append(data, add_ms, expiry_ms)

    def delete(self, queue: WindowedQueue) -> None:
        """Delete the queue from memory now, and from the database with the next commit."""
        live = self._queues.get(queue.name)
        if live is not None and not queue.is_deleted:
            if self._writer.end is not None:
                raise StorageError(self._writer.end)
            del self._queues[queue.name]
            self._deleting[queue.name] = self._deleting.get(queue.name, 0) + 1
            written = self._writer.write(live.deletion())
            self._deletions[queue] = written.addBoth(self._deletion_ended, queue)
            queue.is_deleted = live.is_deleted = True
            live.kill("the queue was deleted")  # it is another object if `queue` failed and was reopened
            live.end_fill()
        queue.kill("the queue was deleted")
        queue.end_fill()

    # Commits.

    def commit(self, queues: Sequence[WindowedQueue]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        pairs: list[tuple[Sequence[IQueueStorage], Deferred[Any]]] = []
        for queue in queues:
            outcome = self._commit_queue(queue)
            if outcome is not None:
                pairs.append(([queue], outcome))
        self._writer.flush()
        return pairs

    def _commit_queue(self, queue: WindowedQueue) -> Deferred[None] | None:
        if queue in self._deletions:
            return self._deletions.pop(queue)
        if queue.failure is not None:
            return None if queue.is_deleted else fail(QueueFailed(queue.failure))
        sealed = queue.seal()
        if sealed is None:
            return None
        committed: Deferred[None] = Deferred()
        self._writer.write(sealed).addCallbacks(
            self._queue_written, _queue_failed, callbackArgs=(queue, sealed, committed), errbackArgs=(queue, committed)
        )
        return committed

    def _queue_written(self, _: object, queue: WindowedQueue, changes: QueueChanges, committed: Deferred[None]) -> None:
        self._stored[queue.name] = changes.queue
        if queue.failure is None:
            queue.written(changes)
        committed.callback(None)

    def _deletion_ended(self, result: Any, queue: WindowedQueue) -> Any:
        name = queue.name
        self._deleting[name] -= 1
        if not self._deleting[name]:
            del self._deleting[name]
        if not isinstance(result, Failure):
            self._stored.pop(name, None)
            self._deletions.pop(queue, None)  # no commit needs to wait, and perhaps none will name the queue
        return result

    # Stop.

    def close(self, compacts: bool = False) -> Deferred[None]:
        """Commit, and release the database. Waits at most `LAST_WRITES_S` for a database that is away."""
        self._is_closing = True
        late = self._clock.callLater(LAST_WRITES_S, self._stop_without_database)

        def is_idle(_: object) -> Deferred[None]:
            if late.active():
                late.cancel()
            self._writer.stop(StorageError("the storage is closed"))
            return maybeDeferred(self._database.close)

        # Changes that depend on a pending batch are sealed after its result is known.
        return self._writer.idle().addCallback(self._commit_last).addCallback(is_idle)

    def _stop_without_database(self) -> None:
        log.error("Stopped while the database is away: changes that were not acknowledged may be lost")
        self._writer.stop(StorageError("the server stopped while the database was away"))

    def _writer_ended(self, error: StorageError) -> None:
        """Fail all queues, because nothing more is written. Another server may be serving their items by now."""
        for queue in list(self._queues.values()):
            queue.kill(str(error))
            queue.end_fill()
        if not self._is_closing and not self.ended.called:
            log.critical("The storage cannot write any more: {reason}", reason=str(error))
            self.ended.callback(error)

    def _commit_last(self, _: object) -> Deferred[None]:
        for outcome in self._last_writes():
            outcome.addErrback(
                lambda failure: log.error("Changes were lost at the stop: {reason}", reason=failure.getErrorMessage())
            )
        return self._writer.idle()

    def _last_writes(self) -> Iterator[Deferred[None]]:
        alive = [queue for queue in self._queues.values() if queue.failure is None]
        for queue in [*self._deletions, *alive]:
            outcome = self._commit_queue(queue)
            if outcome is not None:
                yield outcome


def _queue_failed(failure: Failure, queue: WindowedQueue, committed: Deferred[None]) -> None:
    queue.kill(error_of(failure).args[0])
    committed.errback(failure)  # reopens the queue, where waiters then wait for the head
    queue.end_fill()
