"""Read-ahead: items that are only on disk are read into a queue's window, in a thread and if possible in advance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kestrel.errors import QueueFailed
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_resources import FolderResources


class ReadAhead(ABC):
    """The reader of one queue's items that are behind its window. It makes one read at a time."""

    def __init__(self, queue: Any, resources: FolderResources) -> None:
        self._queue = queue
        self._resources = resources
        self._is_reading = False
        self._waiting: list[Deferred[None]] = []

    @abstractmethod
    async def _next_read(self) -> Callable[[], Any] | None:
        """Return a function that reads the next items, in a thread, or None if there is nothing to read."""

    @abstractmethod
    def _failed(self, error: Exception) -> None:
        """Handle the error of a read. The callers in `_waiting` are told afterwards."""

    def read_more(self) -> Deferred[None] | None:
        """Read the next items. Return a Deferred that fires when they are read, or fails with `QueueFailed`."""
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        self._begin_read()
        return done

    def _begin_read(self) -> None:
        """Begin a read, unless one is running."""
        if not self._is_reading:
            self._is_reading = True
            Deferred.fromCoroutine(self._read()).addCallbacks(self._read_succeeded, self._read_failed)

    async def _read(self) -> None:
        """Read the next items in a thread. Ignore the result if items were dropped or files replaced meanwhile."""
        queue, resources = self._queue, self._resources
        await resources.read_slots.acquire()
        try:
            read_part = await self._next_read()
            if read_part is None:
                return
            generation, began_s = queue.behind_generation, resources.jobs.seconds()
            try:
                read = await resources.jobs.run(read_part)
            except OSError:
                if queue.behind_generation != generation:
                    return
                raise
            resources.record_duration(queue.name, "fill_readbehind_usec", began_s)
            if queue.behind_generation == generation:
                queue.append_read_items(read)
                queue.report_memory()
        finally:
            resources.read_slots.release()

    def _read_succeeded(self, _: object) -> None:
        self._is_reading = False
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None)

    def _read_failed(self, failure: Failure) -> None:
        self._is_reading = False
        error = error_of(failure)
        self._failed(error)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.errback(QueueFailed(f"the head cannot be read: {reason_of(error)}"))
