"""A folder of libkestrel's journals with the journaled queues of a program."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.errors import StorageError
from kestrel.library.arguments import FolderPath
from kestrel.library.deferreds import run_to_completion
from kestrel.library.folder_journaled_queue import FolderJournaledQueue
from kestrel.library.journaled_config import JournaledQueueConfig
from kestrel.library.reader_stores import FileReaderStores, MemoryReaderStores, ReaderStores
from kestrel.queues.context import RuntimeContext, wall_clock_ms
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.scroll.name_encoding import DEFAULT_READER, location_of
from kestrel.storage.barrier import Barrier
from kestrel.storage.scroll.storage import RESERVE_BYTES, ScrollStorage


class ScrollFolder:
    """The journaled queues of one folder, which is locked from `open` to `close`. Without a `path` they are kept in
    memory.

    `reactor` provides timers, `callFromThread` and a thread pool. `archive` is the folder that receives journal files
    when no reader needs them; with None they are deleted. `reserve_bytes` of disk space are reserved for use when the
    disk is full. `now_ms` is the wall clock.
    """

    def __init__(
        self,
        path: FolderPath | None,
        reactor: Any,
        *,
        archive: FolderPath | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        self._reactor = reactor
        barrier = Barrier(reactor.callFromThread)
        scheduler = TickScheduler(barrier, reactor.callFromThread, reactor.seconds)
        self.context = RuntimeContext(barrier, scheduler, reactor, now_ms, self._storage_failed)
        self._storage: ScrollStorage | None = None
        if path is not None:
            self._storage = ScrollStorage(
                _absolute(path),
                reactor,
                self._in_thread,
                reserve_bytes=reserve_bytes,
                now_ms=now_ms,
                disk=disk,
                archive=None if archive is None else _absolute(archive),
                as_library=True,
            )
        self._queues: dict[bytes, FolderJournaledQueue] = {}
        """Open queues by name."""
        self._readers: dict[bytes, set[bytes]] = {}
        """Names of the readers of queues that are not open, by queue."""
        self._changing = DeferredLock()
        self._is_open = False
        self._is_closed = False

    def _in_thread(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *args)

    def open(self) -> Deferred[None]:
        """Lock the folder, create it if necessary, and load its journals.

        Fails with a `StorageError`, for example `FolderInUse`. A journal that cannot be read does not fail `open`: the
        error is logged, and each `queue` of its name tries again.
        """
        return run_to_completion(self._open())

    async def _open(self) -> None:
        async with self._changing:
            if self._is_open or self._is_closed:
                raise StorageError("a scroll folder can be opened only once")
            if self._storage is not None:
                for name in await self._storage.start(lambda _: QueueSettings()):
                    queue, reader = location_of(name)
                    self._readers.setdefault(queue, set()).add(DEFAULT_READER if reader is None else reader)
            self._is_open = True
            self.context.scheduler.open()

    @property
    def is_closed(self) -> bool:
        """Whether the folder is closed or being closed."""
        return self._is_closed

    def check(self) -> None:
        """Raise `StorageError` unless the folder is open."""
        if not self._is_open:
            raise StorageError(
                "the scroll folder is closed" if self._is_closed else "the scroll folder is not open yet"
            )

    def queue(self, config: JournaledQueueConfig) -> FolderJournaledQueue:
        """Return the queue that `config` names, and create it if necessary. A queue that is already open keeps its
        config.

        Raises `QueueFailed` if its journal cannot be read, and ValueError if `config` names an archive, which must be
        passed to the folder.
        """
        if config.save_archived_journals is not None:
            raise ValueError("queues that share a folder share its archive: pass archive= to ScrollFolder")
        self.check()
        queue = self._queues.get(config.name)
        if queue is None:
            queue = FolderJournaledQueue(config, self)
            self.adopt(queue)
        elif queue.is_closed:
            raise StorageError(f"queue {config.name!r} is being closed: wait until it is closed")
        return queue

    def adopt(self, queue: FolderJournaledQueue) -> None:
        """Load a queue and add it to the folder. Raises `QueueFailed`."""
        queue.load(self._readers.get(queue.name, ()))
        self._queues[queue.name] = queue

    def reader_stores_for(self, config: JournaledQueueConfig) -> ReaderStores:
        """Return the stores for the readers of a queue, in files or in memory."""
        if self._storage is None or not config.journaled:
            return MemoryReaderStores(config)
        return FileReaderStores(config, self._storage)

    def forget(self, queue: FolderJournaledQueue) -> None:
        """Remove a closed queue, and remember its readers for the next queue of its name."""
        was_open = self._queues.pop(queue.name, None) is not None
        if was_open and queue.config.journaled:
            self._readers[queue.name] = {reader.name for reader in queue.readers}

    def _storage_failed(self) -> None:
        """Reopen every reader whose store has failed."""
        for queue in list(self._queues.values()):
            for reader in queue.readers:
                reader.reopen_if_failed()

    def close(self) -> Deferred[None]:
        """Close every queue and unlock the folder.

        Fails with `QueueFailed` if a change to a queue since its last `checkpoint` was lost; the folder is closed
        anyway. Further calls do nothing.
        """
        return run_to_completion(self._close())

    async def _close(self) -> None:
        async with self._changing:
            was_open, self._is_open = self._is_open, False
            self._is_closed = True
            if not was_open:
                return
            loss: Exception | None = None
            for queue in list(self._queues.values()):
                try:
                    await queue.end()
                except StorageError as error:
                    loss = loss or error
            if self._storage is not None:
                await self._storage.close()
            if loss is not None:
                raise loss


def _absolute(path: FolderPath) -> bytes:
    return os.path.abspath(os.fsencode(path))
