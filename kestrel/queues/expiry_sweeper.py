"""The expiry timer: it sweeps expired items from all queues, and deletes old, empty queues."""

from __future__ import annotations

from collections import deque
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from kestrel.errors import KestrelError
from kestrel.escaping import show_name
from kestrel.queues.limits import MAX_SWEPT_PER_SLICE
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.ranges import has_range_reader
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.timer import Timer

log = Logger(__name__)

SWEPT_QUEUES_PER_SLICE: Final = 200
"""Queues visited in one slice when none has expired items, which takes about half a millisecond."""

FULL_MOVES_RETRY_S: Final = 0.02
"""Wait before a sweep continues when all its remaining queues have the most concurrent moves."""


class ExpirySweeper:
    """A periodic sweep of expired items from all queues, in slices. It also deletes empty queues at their maxQueueAge.

    A queue with more expired items than fit in a slice is visited again in the same sweep, after the other queues. At
    most maxExpireSweep of its items leave in a sweep.
    """

    def __init__(self, manager: QueueManager, scheduler: TickScheduler, clock: IReactorTime) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._clock = clock
        self._every_s: float | None = None
        self._timer = Timer(clock, self._begin)
        self._blocked_by_moves: list[tuple[Queue, int]] = []
        """Queues with the most concurrent moves. They continue when some moves have ended."""
        self._retry_timer = Timer(clock, self._go_on)
        self._round: deque[tuple[Queue, int]] = deque()
        """The queues that are still to be visited, with the number of items that may leave each."""

    def every(self, ms: int | None) -> None:
        """Sweep every `ms` milliseconds from now on. None turns sweeps off."""
        every_s = None if ms is None else ms / 1000
        if every_s != self._every_s:
            self._every_s = every_s
            self._timer.stop()
            self._start_timer()

    def stop(self) -> None:
        self._every_s = None
        self._round.clear()
        self._blocked_by_moves.clear()
        self._timer.stop()
        self._retry_timer.stop()

    def _start_timer(self) -> None:
        if self._every_s is not None:
            self._timer.start(self._every_s)

    def _begin(self) -> None:
        self._start_timer()
        if not self._round and not self._blocked_by_moves:  # otherwise the last sweep is still running
            self._round.extend((queue, self._most(queue)) for queue in self._manager.queues_including_masked())
            self._scheduler.continue_later(self._go_on)

    @staticmethod
    def _most(queue: Queue) -> int:
        most = queue.settings.max_expire_sweep
        return 1 << 62 if most is None else most

    def _go_on(self) -> None:
        began, swept = self._scheduler.seconds(), 0
        for _ in range(min(SWEPT_QUEUES_PER_SLICE, len(self._round))):
            queue, most = self._round.popleft()
            try:
                swept += self._visit(queue, most)
            except KestrelError as error:
                log.error("Queue {queue} cannot be swept: {reason}", queue=show_name(queue.name), reason=str(error))
            except Exception:  # an error in one queue must not end the sweep of the others
                log.failure("Sweeping queue {queue} failed unexpectedly", queue=show_name(queue.name))
            if swept >= MAX_SWEPT_PER_SLICE or self._scheduler.exceeds_tick(began):
                break
        if self._round:
            self._scheduler.continue_later(self._go_on)
        elif self._blocked_by_moves:
            self._round.extend(self._blocked_by_moves)
            self._blocked_by_moves.clear()
            self._retry_timer.start(FULL_MOVES_RETRY_S)

    def _visit(self, queue: Queue, most: int) -> int:
        if queue.is_deleted:
            return 0
        queue.reopen()
        if self._is_too_old(queue):
            self._manager.expire(queue)
            return 0
        self._manager.switch_storage_if_needed(queue)
        swept = queue.head.sweep(min(most, MAX_SWEPT_PER_SLICE))
        if swept < most and queue.head.has_expired:
            if not queue.moves.is_full:
                self._round.append((queue, most - swept))
            elif queue.moves.failure is None:
                self._blocked_by_moves.append((queue, most - swept))
        else:
            queue.head.load()
        return swept

    def _is_too_old(self, queue: Queue) -> bool:
        most_ms, store = queue.settings.max_queue_age_ms, queue.store
        if most_ms is None or store.items or store.open_reads or queue.waiters or queue.unsettled_batch:
            return False
        return self._clock.seconds() - queue.created_s > most_ms / 1000 and not has_range_reader(queue)
