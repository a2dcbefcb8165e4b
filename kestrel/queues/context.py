"""The objects that all queues of a server, or of a program, share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.storage.barrier import Barrier, Batch


class PutByName(Protocol):
    """A function that puts a moving item to a queue by name, as a client's put would."""

    def __call__(
        self, name: bytes, data: bytes, done: Collection[bytes], expiry_ms: int
    ) -> Mapping[bytes, Batch] | None:
        """Put `data` to all queues that `name` leads to, except those in `done`.

        Return the batch of each queue that it was put to now, by the queue's name. Return None if limits refuse it
        everywhere. If this raises a `KestrelError`, it was put to no queue.
        """


class QueueContext:
    """The barrier, the scheduler, both clocks, and the ways from one queue to others.

    `clock` is monotonic and drives timers. `wall_clock_ms` is for stored times. `put` puts items that move to other
    queues. `storage_failed` is called when the store of a queue has failed, since other stores may have failed with it.
    """

    def __init__(
        self,
        barrier: Barrier,
        scheduler: TickScheduler,
        clock: IReactorTime,
        wall_clock_ms: Callable[[], int],
        put: PutByName,
        storage_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.barrier = barrier
        self.scheduler = scheduler
        self.clock = clock
        self.put = put
        self.storage_failed = storage_failed
        self.delayed_items_of: Callable[[bytes], int] = lambda name: 0
        """Returns the number of delayed items of a queue."""
        self._wall_clock_ms = wall_clock_ms
        self._tick = -1
        """Number of the tick of the hub that `_tick_ms` was read in."""
        self._tick_ms = 0

    def now_ms(self) -> int:
        """Return the time of day, in milliseconds since the epoch. A tick of the hub reads the clock once."""
        barrier = self.barrier
        if not barrier.is_in_tick:
            return self._wall_clock_ms()
        if self._tick != barrier.ticks:
            self._tick = barrier.ticks
            self._tick_ms = self._wall_clock_ms()
        return self._tick_ms
