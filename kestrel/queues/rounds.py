"""The expiry timer: in rounds, what has expired leaves every queue, and queues that are old and empty are deleted."""

from __future__ import annotations

from collections import deque
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from kestrel.errors import KestrelError
from kestrel.queues.expiry import SWEPT_AT_ONCE
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.ranges import is_held
from kestrel.queues.timer import Timer
from kestrel.queues.turns import Turns

log = Logger(__name__)

QUEUES_AT_ONCE: Final = 200
"""Queues that are looked at in one turn, when nothing in them has expired: about half a millisecond."""

BREATH_S: Final = 0.02
"""How long a round waits when all that is left of it are queues with as many items on their way as may be."""


class ExpiryRounds:
    """Goes round all queues every so often, in turns with everything else.

    A queue in which more has expired than one turn has time for is visited again in the same round, after the
    others; at most maxExpireSweep of its items leave in a round.
    """

    def __init__(self, manager: QueueManager, turns: Turns, clock: IReactorTime) -> None:
        self._manager = manager
        self._turns = turns
        self._clock = clock
        self._every_s: float | None = None
        self._timer = Timer(clock, self._begin)
        self._held_up: list[tuple[Queue, int]] = []
        """Those with as many items on their way as may be: they go on when some have arrived."""
        self._breath = Timer(clock, self._go_on)
        self._round: deque[tuple[Queue, int]] = deque()
        """The queues that are still to be visited, and how many of their items may leave."""

    def every(self, ms: int | None) -> None:
        """Go round so often from now on; None: not at all."""
        every_s = None if ms is None else ms / 1000
        if every_s != self._every_s:
            self._every_s = every_s
            self._timer.stop()
            self._start_timer()

    def stop(self) -> None:
        """Go round no more."""
        self._every_s = None
        self._round.clear()
        self._held_up.clear()
        self._timer.stop()
        self._breath.stop()

    def _start_timer(self) -> None:
        if self._every_s is not None:
            self._timer.start(self._every_s)

    def _begin(self) -> None:
        self._start_timer()
        if not self._round and not self._held_up:  # else the last round is still under way
            self._round.extend((queue, self._most(queue)) for queue in self._manager.even_masked_queues())
            self._turns.go_on_later(self._go_on)

    @staticmethod
    def _most(queue: Queue) -> int:
        most = queue.settings.max_expire_sweep
        return 1 << 62 if most is None else most

    def _go_on(self) -> None:
        began, swept = self._turns.seconds(), 0
        for _ in range(min(QUEUES_AT_ONCE, len(self._round))):
            queue, most = self._round.popleft()
            try:
                swept += self._visit(queue, most)
            except KestrelError as error:
                log.error("Queue {queue!r} is not swept: {reason}", queue=queue.name, reason=str(error))
            except Exception:  # one queue's fault must not end the rounds of all
                log.failure("Queue {queue!r} could not be swept for a fault of ours", queue=queue.name)
            if swept >= SWEPT_AT_ONCE or self._turns.is_long(began):
                break
        if self._round:
            self._turns.go_on_later(self._go_on)
        elif self._held_up:
            self._round.extend(self._held_up)
            self._held_up.clear()
            self._breath.start(BREATH_S)

    def _visit(self, queue: Queue, most: int) -> int:
        if queue.is_deleted:
            return 0
        queue.reopen()
        if self._is_too_old(queue):
            self._manager.expire(queue)
            return 0
        self._manager.use_right_storage(queue)
        swept = queue.head.sweep(min(most, SWEPT_AT_ONCE))
        if swept < most and queue.head.has_expired:
            if not queue.moves.is_full:
                self._round.append((queue, most - swept))
            elif queue.moves.failure is None:
                self._held_up.append((queue, most - swept))
        else:
            queue.head.load()
        return swept

    def _is_too_old(self, queue: Queue) -> bool:
        most_ms, contents = queue.settings.max_queue_age_ms, queue.contents
        if most_ms is None or contents.items or contents.open_reads or queue.waiting or queue.unsettled_batch:
            return False
        return self._clock.seconds() - queue.born_s > most_ms / 1000 and not is_held(queue)
