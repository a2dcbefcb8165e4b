"""The flush of all expired items at the heads of some queues, including items that are only on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred

from kestrel.queues.queue import Queue
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch, combine_batches

FLUSHED_QUEUES_PER_SLICE: Final = 64


class ExpiredFlushResult(NamedTuple):
    """The number of items that expired, and the batch that the reply waits for."""

    items: int
    batch: Batch | None


class ExpiredFlush:
    """A flush of expired items in some queues. Finding a queue's head sweeps all expired items before it.

    `done` fires when all heads are found. It fails with the error of a head that cannot be read only if there is a
    single queue; otherwise that queue is skipped.
    """

    def __init__(self, queues: Sequence[Queue], scheduler: TickScheduler) -> None:
        self.done: Deferred[ExpiredFlushResult] = Deferred()
        self._before = {queue: queue.counters.expired_items for queue in queues}
        self._missing = len(queues) + 1
        """Number of queues whose heads are not found yet, and one more until all searches have begun."""
        self._problem: Exception | None = None
        scheduler.for_each(queues, self._look_for_head, FLUSHED_QUEUES_PER_SLICE).addCallbacks(
            lambda _: self._one_is_known(), self.done.errback
        )

    def _look_for_head(self, queue: Queue) -> None:
        queue.join(Waiter(self._head_is_known, opens=False, peeks=True, is_blocking=False))

    def _head_is_known(self, _: object, error: Exception | None) -> None:
        self._problem = self._problem or error
        self._one_is_known()

    def _one_is_known(self) -> None:
        self._missing -= 1
        if self._missing:
            return
        if self._problem is not None and len(self._before) == 1:
            self.done.errback(self._problem)
            return
        count = sum(queue.counters.expired_items - before for queue, before in self._before.items())
        unsettled = [queue.unsettled_batch for queue in self._before]
        self.done.callback(
            ExpiredFlushResult(count, combine_batches([batch for batch in unsettled if batch is not None]))
        )
