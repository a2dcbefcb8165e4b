"""A folder whose queues belong to one program."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool

from kestrel.errors import KestrelError, StorageError
from kestrel.library.arguments import FolderPath
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.storage.barrier import Barrier

T = TypeVar("T")


class ProgramFolder(ABC):
    """A folder that is locked from `open` to `close`.

    `reactor` provides timers, `callFromThread` and a thread pool.
    """

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.scheduler = TickScheduler(Barrier(reactor.callFromThread), reactor.callFromThread, reactor.seconds)
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
                raise StorageError("a folder can be opened only once")
            await self._start()
            self._is_open = True
            self.scheduler.open()

    def open_with(self, use: Callable[[], object]) -> Deferred[None]:
        """Open the folder and call `use`. If that raises a `KestrelError`, close the folder and fail with the error."""
        return run_to_completion(self._open_with(use))

    async def _open_with(self, use: Callable[[], object]) -> None:
        await self._open()
        try:
            self.check()  # it may have been closed while it was being opened
            use()
        except KestrelError:
            await self._close()
            raise

    @property
    def is_closed(self) -> bool:
        """Whether the folder is closed or being closed."""
        return self._is_closed

    def check(self) -> None:
        """Raise `StorageError` unless the folder is open."""
        if not self._is_open:
            raise StorageError("the folder is closed" if self._is_closed else "the folder is not open yet")

    def close(self) -> Deferred[None]:
        """Answer waiting consumers with None, make all changes safe, and unlock the folder.

        Fails with `QueueFailed` if a change was lost that its queue has not reported yet; the folder is closed anyway.
        Further calls do nothing.
        """
        return run_to_completion(self._close())

    async def _close(self) -> None:
        async with self._changing:
            was_open, self._is_open = self._is_open, False
            self._is_closed = True
            if was_open:
                await self._stop()

    @abstractmethod
    async def _start(self) -> None:
        """Lock the folder and load its queues."""

    @abstractmethod
    async def _stop(self) -> None:
        """Close the queues and unlock the folder."""


def run_to_completion(coroutine: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
    """Run a coroutine to its end, even if the returned Deferred is cancelled.

    An interrupted coroutine could leave a folder half open.
    """
    result: Deferred[T] = Deferred()
    Deferred.fromCoroutine(coroutine).addCallbacks(result.callback, result.errback)
    return result


def absolute(path: FolderPath) -> bytes:
    """Return the path of a folder, whatever the current directory will be."""
    return os.path.abspath(os.fsencode(path))
