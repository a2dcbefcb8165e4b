"""Queues with items that are only on disk, and the reads that bring these items into memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.errors import QueueFailed
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.jobs import fire_all
from kestrel.storage.total_memory import MemoryLimit
from kestrel.storage.window import Window


@mypyc_attr(allow_interpreted_subclasses=True)
class LogQueue(Window):
    """A queue of a folder, with a window in memory and any number of items behind it, which are only on disk."""

    def __init__(self, name: bytes, settings: QueueSettings, memory_limit: MemoryLimit) -> None:
        super().__init__(memory_limit)
        self.name = name
        self.settings = settings
        self.is_deleted = False
        self.replayed_items = 0
        self.behind_generation = 0
        """Number that changes when items are dropped or files replaced. Reads that began before are ignored."""
        self.read_more: Callable[[], Deferred[None] | None] = lambda: None
        """Function that brings items into the window: returns None if it has, or a Deferred that fires when it has."""

    def fill(self) -> Deferred[None] | None:
        """Return None if the head is in memory or there is none, or a Deferred that fires when it has been read."""
        self.check()
        if self.has_head or not self.behind_items:
            return None
        return self.read_more()

    def append_read_items(self, read: Any) -> None:
        """Append items that were read from behind the window to it."""
        raise NotImplementedError

    def end(self, why: str) -> None:
        """Let all further calls fail with the reason `why`, and free the items."""
        self.failure = why
        self.behind_generation += 1
        self.release_items()
        self.memory.set_bytes(0)


QueueT = TypeVar("QueueT", bound=LogQueue)


@mypyc_attr(allow_interpreted_subclasses=True)
class ReadAhead(ABC, Generic[QueueT]):
    """The reader of one queue's items that are behind its window. It makes one read at a time."""

    def __init__(self, queue: QueueT, resources: FolderResources) -> None:
        self._queue = queue
        self._resources = resources
        self._is_reading = False
        self._waiting: list[Deferred[None]] = []
        queue.read_more = self.read_more

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
        fire_all(self._waiting)

    def _read_failed(self, failure: Failure) -> None:
        self._is_reading = False
        error = error_of(failure)
        self._failed(error)
        fire_all(self._waiting, QueueFailed(f"the head cannot be read: {reason_of(error)}"))
