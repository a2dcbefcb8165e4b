"""How far a long run is, and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.harness import progress


class Clock:
    """Steps of about the same length, so many in all; on a terminal they are shown, and the time that is left."""

    def __init__(self, steps: int, seconds: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._seconds = seconds
        self._began = seconds()
        self._done = 0

    def show(self, what: str) -> None:
        """What is done now."""
        progress(f"{what}{self.left()}", min(self._done, self._steps - 1), self._steps)

    def step(self, count: int = 1) -> None:
        """So many are done."""
        self._done += count

    def left(self) -> str:
        """How long it still takes, in words; nothing while nobody can know."""
        if not self._done:
            return ""
        left_s = (self._seconds() - self._began) / self._done * max(0, self._steps - self._done)
        return f", {left_s:.0f} s left" if left_s < 90 else f", {left_s / 60:.0f} min left"

    def close(self) -> None:
        """It is over: show nothing any more."""
        progress("", 1, 1)
