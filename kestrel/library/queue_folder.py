"""A folder of journals with the queues of a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool

from kestrel.config.model import Config, QueueSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.disk.files import Disk
from kestrel.errors import StorageError
from kestrel.library.arguments import FolderPath, check_name, check_settings
from kestrel.library.deferreds import run_to_completion, when_batch_settled
from kestrel.library.folder_queue import FolderQueue
from kestrel.queues.context import wall_clock_ms
from kestrel.queues.expiry_sweeper import ExpirySweeper
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.storage.barrier import Barrier, Batch
from kestrel.storage.interfaces import SettingsFor
from kestrel.storage.journal.storage import RESERVE_BYTES, JournalStorage
from kestrel.storage.memory import MemoryStorage

Lookup: TypeAlias = "Callable[[bytes], FolderQueue | None]"
"""Function that returns the queue for a name that items move to, or None if there is none."""


class QueueFolder:
    """The queues of one folder, which is locked from `open` to `close`.

    `reactor` provides timers, `callFromThread` and a thread pool. `settings_for` returns the settings of a queue when
    it is first used. `reserve_bytes` of disk space are reserved for use when the disk is full. `now_ms` is the wall
    clock.
    """

    def __init__(
        self,
        path: FolderPath,
        reactor: Any,
        *,
        settings_for: SettingsFor = lambda name: QueueSettings(),
        lookup: Lookup | None = None,
        expire_every_s: float | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk | None = None,
    ) -> None:
        self.reactor = reactor
        self._lookup = lookup
        self._expire_every_s = expire_every_s
        barrier = Barrier(reactor.callFromThread)
        self.scheduler = TickScheduler(barrier, reactor.callFromThread, reactor.seconds)
        storage = JournalStorage(
            os.path.abspath(os.fsencode(path)),
            reactor,
            self._in_thread,
            reserve_bytes=reserve_bytes,
            now_ms=now_ms,
            disk=disk,
        )
        config = ResolvedConfig(Config())
        config.settings_for = lambda name: check_settings(name, settings_for(name))
        self._manager = QueueManager(
            storage, MemoryStorage(), config, self.scheduler, reactor, now_ms, put_by_name=self._put_by_name
        )
        self._expiry_sweeper = ExpirySweeper(self._manager, self.scheduler, reactor)
        self.queues: dict[bytes, FolderQueue] = {}
        """Queue objects that the program has requested, by name. Each name has one object, which knows its open reads.
        """
        self._changing = DeferredLock()
        self._is_open = False
        self._is_closed = False

    def _in_thread(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return deferToThreadPool(self.reactor, self.reactor.getThreadPool(), function, *args)

    def open(self) -> Deferred[None]:
        """Lock the folder, create it if necessary, and replay its journals.

        Fails with a `StorageError`, for example `FolderInUse`. A journal that cannot be read does not fail `open`: the
        error is logged, and each use of its queue tries again.
        """
        return run_to_completion(self._open())

    async def _open(self) -> None:
        async with self._changing:
            if self._is_open or self._is_closed:
                raise StorageError("a queue folder can be opened only once")
            await self._manager.start()
            self._is_open = True
            self.scheduler.open()
            if self._expire_every_s is not None:
                self._expiry_sweeper.every(round(self._expire_every_s * 1000))

    @property
    def is_closed(self) -> bool:
        """Whether the folder is closed or being closed."""
        return self._is_closed

    @property
    def manager(self) -> QueueManager:
        """The queue manager, for operations that this class lacks. Raises `StorageError` unless the folder is open."""
        if self._is_closed:
            raise StorageError("the queue folder is closed")
        if not self._is_open:
            raise StorageError("the queue folder is not open yet")
        return self._manager

    def queue(self, name: bytes) -> FolderQueue:
        """Return the queue `name`, and create it if necessary.

        Raises `BadQueueName`, and `QueueFailed` if its journal cannot be read.
        """
        check_name(name)
        self.manager.queue(name)
        return self.queues.get(name) or FolderQueue(name, self)

    def close(self) -> Deferred[None]:
        """Answer waiting consumers with None, make all changes safe, and unlock the folder.

        Fails with `QueueFailed` if a change since the last `safe` of its queue was lost; the folder is closed anyway.
        Further calls do nothing.
        """
        return run_to_completion(self._close())

    async def _close(self) -> None:
        async with self._changing:
            was_open, self._is_open = self._is_open, False
            self._is_closed = True
            if not was_open:
                return
            self._expiry_sweeper.stop()
            self._manager.wake_all()
            try:
                await self._all_settled()
                for queue in self.queues.values():
                    await queue.safe()
            finally:
                await self._manager.close()

    async def _all_settled(self) -> None:
        """Wait for all batches, including those of moves: a move is confirmed in a batch after it has arrived."""
        while batches := unsettled_batches(self._manager.queues_including_masked()):
            for batch in batches:
                await when_batch_settled(batch)

    def _put_by_name(self, name: bytes, data: bytes, done: Collection[bytes]) -> Mapping[bytes, Batch] | None:
        if self._lookup is None:
            return self._manager.put_moved(name, data, done)
        queue = self._lookup(name)
        if queue is None:
            raise StorageError(f"lookup found no queue {name!r}")
        return queue.folder.manager.put_moved(queue.name, data, done)


def unsettled_batches(queues: list[Queue]) -> list[Batch]:
    """Return the latest batch of each queue, for queues whose latest batch is not yet safe."""
    return [batch for queue in queues if (batch := queue.unsettled_batch) is not None]
