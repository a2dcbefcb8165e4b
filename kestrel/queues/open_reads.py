"""The items of one queue that clients hold open: since when, and for how long they may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from twisted.internet.interfaces import IReactorTime

from kestrel.item import Item
from kestrel.queues.timer import Timer

ENDED_AT_ONCE: Final = 5000
"""Reads that are ended for their age in one turn."""

_CLOSE_ENOUGH_S: Final = 1e-6
"""Clocks count in floating point: a timer that is due must find what it was set for."""


class HeldReads:
    """Open reads by xid, oldest first. `timed_out` is called with the xids of those held for too long."""

    def __init__(self, clock: IReactorTime, timed_out: Callable[[list[int]], None]) -> None:
        self._clock = clock
        self._timed_out = timed_out
        self._timeout_s: float | None = None
        self._reads: dict[int, tuple[Item, float]] = {}
        self._timer = Timer(clock, self._look)

    def __contains__(self, xid: int) -> bool:
        return xid in self._reads

    def __iter__(self) -> Iterator[int]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)

    def opened(self, item: Item) -> None:
        """A client holds that item from now on."""
        self._reads[item.xid] = (item, self._clock.seconds())
        if self._timeout_s is not None and not self._timer.is_running:
            self._timer.start(self._timeout_s)

    def ended(self, xid: int) -> Item | None:
        """The client holds it no longer; the item, or None if it did not."""
        read = self._reads.pop(xid, None)
        return None if read is None else read[0]

    def clear(self) -> None:
        """Nobody holds anything any more."""
        self._reads.clear()
        self._timer.stop()

    def use_timeout(self, timeout_ms: int | None) -> None:
        """From now on, also for those that are open, they may be held for so long; None: for ever."""
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            self._timer.stop()
            if timeout_s is not None and self._reads:
                self._timer.start(0)

    def _look(self) -> None:
        if self._timeout_s is None:
            return
        due_s = self._clock.seconds() - self._timeout_s + _CLOSE_ENOUGH_S
        late: list[int] = []
        next_s: float | None = None
        for xid, (_, opened_s) in self._reads.items():
            if opened_s > due_s:
                next_s = opened_s - due_s
                break
            late.append(xid)
        if len(late) > ENDED_AT_ONCE:  # the older ones in another turn: they go in front of these
            next_s = 0.0
        if next_s is not None:
            self._timer.start(next_s)
        if late:
            self._timed_out(late[-ENDED_AT_ONCE:])
