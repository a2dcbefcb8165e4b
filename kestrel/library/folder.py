"""A folder whose queues belong to one program, and checks of the arguments that the program passes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import UnionType
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool

from kestrel.config.model import QueueSettings
from kestrel.config.setting import settings_of
from kestrel.errors import KestrelError, StorageError
from kestrel.names import check_queue_name
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.storage.barrier import Barrier

FolderPath: TypeAlias = "str | bytes | os.PathLike[str]"

MAX_TIME_MS: Final = (1 << 63) - 1
"""Largest time that the records of both journal formats can store."""


def check_name(name: object) -> None:
    """Raise TypeError or `BadQueueName` unless `name` is a valid queue name."""
    if not isinstance(name, bytes):
        raise TypeError(f"a queue's name must be bytes, such as b'work', not {name!r}")
    check_queue_name(name)


def check_item(data: object, expiry_ms: object) -> None:
    """Raise TypeError or ValueError unless `data` and `expiry_ms` are valid for an item."""
    if not isinstance(data, bytes):
        raise TypeError(f"an item must be bytes, not {type(data).__name__}")
    check_time("expiry_ms", expiry_ms)


def check_time(what: str, time_ms: object) -> None:
    """Raise TypeError or ValueError unless `time_ms` fits in a journal record. `what` names it in the error."""
    if not isinstance(time_ms, int):
        raise TypeError(f"{what} must be a whole number of milliseconds since the epoch, not {time_ms!r}")
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise ValueError(f"{what} must be milliseconds since the epoch, from 0 to {MAX_TIME_MS}, not {time_ms}")


def check_settings(name: bytes, settings: QueueSettings) -> QueueSettings:
    """Return `settings`. Raise TypeError or ValueError if a value is one that a configuration file cannot set."""
    for field, setting in settings_of(QueueSettings).items():
        value = getattr(settings, field)
        kinds = _KINDS_OF_VALUES[field]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise TypeError(f"{field} ({setting.kestrel_name}) must be {names}, not {value!r}")
    if name in (settings.expire_to_queue, settings.error_queue):
        raise ValueError(f"the items of queue {name!r} would move to itself")
    return settings


def _kinds_of(hint: Any) -> tuple[type, ...]:
    return tuple(get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))


_KINDS_OF_VALUES: Final = {name: _kinds_of(hint) for name, hint in get_type_hints(QueueSettings).items()}


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
