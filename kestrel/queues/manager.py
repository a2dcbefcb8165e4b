"""The queue manager: names to queues."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError, StorageError
from kestrel.names import check_queue_name
from kestrel.queues.counters import ServerCounters
from kestrel.queues.queue import Queue
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.interfaces import IQueueStorage, IStorage, SettingsFor

log = Logger()


class QueueManager:
    """All queues of the server.

    `storage` keeps them, but for those with keepJournal = false, which `memory` keeps.
    """

    def __init__(
        self,
        storage: IStorage,
        memory: IStorage,
        settings_for: SettingsFor,
        barrier: Barrier,
        now_ms: Callable[[], int],
    ) -> None:
        self.counters = ServerCounters()
        self.barrier = barrier
        self.now_ms = now_ms
        self._storage = storage
        self._memory = memory
        self._settings_for = settings_for
        self._queues: dict[bytes, Queue] = {}
        self._unloadable: set[bytes] = set()

    # Start and stop.

    def start(self) -> Deferred[None]:
        """Load every queue. Raises `StorageError` at once when the storage cannot be had at all."""
        return self._storage.start(self._settings_for).addCallback(self._loaded)

    def _loaded(self, loaded: dict[bytes, IQueueStorage | Failure]) -> None:
        for name, contents in loaded.items():
            if isinstance(contents, Failure):
                self._unloadable.add(name)  # the storage has said why; every use of the name tries again
                continue
            settings = self._settings_for(name)  # they may have been reloaded meanwhile
            if not settings.keep_journal:
                log.warn(
                    "Queue {queue!r} has a journal but keepJournal is false: the journal is left alone", queue=name
                )
                continue
            try:
                self._queues[name] = self._make(name, self._storage, settings)
            except KestrelError as error:  # it has failed since it was loaded
                log.error("Queue {queue!r} is not served: {reason}", queue=name, reason=str(error))
                self._unloadable.add(name)

    def close(self) -> Deferred[None]:
        """Commit what is left and let the storage go. No queue may be used after this."""
        self.wake_all()
        self.barrier.end_of_tick()
        return self._storage.close()

    def wake_all(self) -> None:
        """Answer everyone who waits, on any queue, as an empty queue does."""
        for queue in self._queues.values():
            queue.answer_all()

    # Names.

    def queue(self, name: bytes) -> Queue:
        """The queue of that name, which comes into being if it must.

        Raises `BadQueueName`, or `QueueFailed` when its storage failed and cannot be opened anew.
        """
        queue = self._queues.get(name)
        if queue is None:
            check_queue_name(name)
            settings = self._settings_for(name)
            storage = self._storage if settings.keep_journal else self._memory
            queue = self._queues[name] = self._make(name, storage, settings)
            self._unloadable.discard(name)
            self.counters.queue_creates += 1
        elif queue.contents.failure is not None:
            queue.reopen()
        return queue

    def _make(self, name: bytes, storage: IStorage, settings: QueueSettings) -> Queue:
        return Queue(name, settings, storage, storage.queue(name, settings), self.barrier, self.now_ms)

    def known(self, name: bytes) -> Queue | None:
        """The queue of that name as it is, usable or not, or None."""
        return self._queues.get(name)

    def existing(self, name: bytes) -> Queue | None:
        """The queue of that name, or None; none comes into being. Raises `QueueFailed` as `queue` does."""
        queue = self._queues.get(name)
        if queue is None:
            return self.queue(name) if name in self._unloadable else None
        if queue.contents.failure is not None:
            queue.reopen()
        return queue

    def all_queues(self) -> list[Queue]:
        """Every queue, in the order of their names."""
        return [self._queues[name] for name in sorted(self._queues)]

    # Commands on names.

    def put(self, name: bytes, data: bytes, expiry_ms: int) -> Batch:
        """Append an item to a queue."""
        batch = self.queue(name).put(data, expiry_ms)
        self.counters.total_items += 1
        return batch

    def delete(self, name: bytes) -> Batch | None:
        """Forget a queue: its items, open reads, files and waiters. Missing is deleted."""
        queue = self._queues.get(name) or self.existing(name)
        if queue is None:
            return None
        del self._queues[name]
        batch = queue.touch()
        queue.is_deleted = True
        self.counters.queue_deletes += 1
        queue.answer_all()
        try:
            queue.storage.delete(queue.contents)
        except StorageError:
            self._unloadable.add(name)  # there is still something of it: it is not deleted
            raise
        return batch

    def flush(self, name: bytes) -> Batch | None:
        """Drop a queue's items, but for open reads."""
        queue = self.existing(name)
        return None if queue is None else queue.flush()

    def flush_all(self) -> list[Batch]:
        """Flush every queue; one whose storage has failed does not keep the others."""
        return [queue.flush() for queue in self._usable()]

    def flush_expired(self, name: bytes) -> tuple[int, Batch | None]:
        """Drop the expired items at the head of a queue. Returns how many, and what that reply waits for."""
        queue = self.existing(name)
        return (0, None) if queue is None else (queue.sweep(), queue.unsettled_batch)

    def flush_all_expired(self) -> tuple[int, list[Batch]]:
        """Drop the expired items at the head of every queue. Returns as `flush_expired`."""
        swept = {queue: queue.sweep() for queue in self._usable()}
        return sum(swept.values()), [queue.touch() for queue, count in swept.items() if count]

    def _usable(self) -> list[Queue]:
        usable = []
        for queue in self.all_queues():
            try:
                queue.reopen()
            except KestrelError as error:
                log.error("Queue {queue!r} is left out: {reason}", queue=queue.name, reason=str(error))
            else:
                usable.append(queue)
        return usable

    # Settings.

    def use_settings(self, settings_for: SettingsFor) -> None:
        """Use other settings for every queue from now on. keepJournal of a live queue stays as it is."""
        self._settings_for = settings_for
        for queue in self._queues.values():
            settings = settings_for(queue.name)
            if settings.keep_journal != queue.settings.keep_journal:
                log.warn("keepJournal of queue {queue!r} cannot change while it exists", queue=queue.name)
            queue.settings = settings
            if queue.contents.failure is None:
                queue.storage.queue(queue.name, settings)
