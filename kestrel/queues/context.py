"""What all queues of a server, or of a program, share."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.storage.barrier import Barrier, Batch

_time_ns: Final = time.time_ns


def wall_clock_ms() -> int:
    """The time for what is stored: milliseconds since the epoch."""
    return _time_ns() // 1_000_000


class PutByName(Protocol):
    """Puts an item that moves to a queue by its name, as if a client did."""

    def __call__(self, name: bytes, data: bytes, done: Collection[bytes]) -> Mapping[bytes, Batch] | None:
        """Put it to all queues that the name leads to, but for those that are done.

        The batch of each queue that has it now, by name; or None when limits refuse it everywhere. Raises a
        `KestrelError`, and then no queue has it.
        """


class RuntimeContext:
    """The barrier, the turns, and both clocks.

    `clock` is for timers and never set back; `now_ms` is the wall's, for times that are stored. `storage_failed` is to
    be told when the contents of a queue have died: others may have died with them.
    """

    def __init__(
        self,
        barrier: Barrier,
        scheduler: TickScheduler,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        storage_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.barrier = barrier
        self.scheduler = scheduler
        self.clock = clock
        self.now_ms = now_ms
        self.storage_failed = storage_failed


class QueueContext(RuntimeContext):
    """The same, and the way to other queues."""

    def __init__(
        self,
        barrier: Barrier,
        scheduler: TickScheduler,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        put: PutByName,
        storage_failed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(barrier, scheduler, clock, now_ms, storage_failed)
        self.put = put
