"""The reopening of failed stores, so that their waiters are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.timer import Timer

REOPEN_RETRY_S: Final = 0.5
"""Wait between two attempts to reopen stores."""


class StoreReopener:
    """A timer that calls `reopen` after a store has failed, and again until it returns True."""

    def __init__(self, reopen: Callable[[], bool], scheduler: TickScheduler, clock: IReactorTime) -> None:
        self._reopen = reopen
        self._scheduler = scheduler
        self._is_under_way = False
        self._timer = Timer(clock, self._try)

    def begin(self) -> None:
        """Begin to reopen failed stores in the next tick, unless that is under way."""
        if not self._is_under_way:
            self._is_under_way = True
            self._scheduler.continue_later(self._try)

    def stop(self) -> None:
        """Stop trying."""
        self._timer.stop()

    def _try(self) -> None:
        self._is_under_way = not self._reopen()
        if self._is_under_way:
            self._timer.start(REOPEN_RETRY_S)
