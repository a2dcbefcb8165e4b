"""Expiring what there is to expire in some queues: all expired items at their heads, also those on disk alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred

from kestrel.queues.queue import Queue
from kestrel.queues.turns import Turns
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch, all_of

QUEUES_AT_ONCE: Final = 64
"""Queues whose heads are looked for in one turn, if its time is not over before."""


class Swept(NamedTuple):
    """How many items expired, and the batch that a reply which says so waits for."""

    items: int
    batch: Batch | None


class Sweep:
    """Waits until the head of each queue is known, which lets all expired ones before it go; queues in turns."""

    def __init__(self, queues: Sequence[Queue], turns: Turns) -> None:
        self.done: Deferred[Swept] = Deferred()
        self._before = {queue: queue.counters.expired_items for queue in queues}
        self._ahead = list(reversed(queues))
        self._turns = turns
        self._missing = len(queues)
        self._problem: Exception | None = None

    def go_on(self) -> None:
        """Look for the heads of as many as there is time for."""
        began = self._turns.seconds()
        if not self._missing:
            self._end()
        for _ in range(min(QUEUES_AT_ONCE, len(self._ahead))):
            self._ahead.pop().join(Waiter(self._head_is_known, opens=False, peeks=True, patient=False))
            if self._turns.is_long(began):
                break
        if self._ahead:
            self._turns.go_on_later(self.go_on)

    def _head_is_known(self, _: object, error: Exception | None) -> None:
        self._missing -= 1
        self._problem = self._problem or error
        if not self._missing:
            self._end()

    def _end(self) -> None:
        if self._problem is not None and len(self._before) == 1:
            self.done.errback(self._problem)
            return
        count = sum(queue.counters.expired_items - before for queue, before in self._before.items())
        unsettled = [queue.unsettled_batch for queue in self._before]
        self.done.callback(Swept(count, all_of([batch for batch in unsettled if batch is not None])))
