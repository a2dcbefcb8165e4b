"""Queues whose contents have died with those of another are opened anew, so that who waits on them is served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime

from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.queues.timer import Timer

REOPEN_RETRY_S: Final = 0.5
"""What a storage takes its time to open, or cannot open yet, is tried so long after the last time."""


class StoreReopener:
    """Calls `reopen` once some contents have died, and again until it says that all of them are open."""

    def __init__(self, reopen: Callable[[], bool], scheduler: TickScheduler, clock: IReactorTime) -> None:
        self._reopen = reopen
        self._scheduler = scheduler
        self._is_under_way = False
        self._timer = Timer(clock, self._try)

    def begin(self) -> None:
        """Some contents have died: in the next turn."""
        if not self._is_under_way:
            self._is_under_way = True
            self._scheduler.continue_later(self._try)

    def stop(self) -> None:
        """Try no more."""
        self._timer.stop()

    def _try(self) -> None:
        self._is_under_way = not self._reopen()
        if self._is_under_way:
            self._timer.start(REOPEN_RETRY_S)
