"""The progress of a long run, with the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.harness import progress


class Clock:
    """A number of steps of about equal length. On a terminal, shows them and the remaining time."""

    def __init__(self, steps: int, seconds: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._seconds = seconds
        self._began = seconds()
        self._done = 0

    def show(self, what: str) -> None:
        """Show the current step."""
        progress(f"{what}{self.left()}", min(self._done, self._steps - 1), self._steps)

    def step(self, count: int = 1) -> None:
        """Count steps as done."""
        self._done += count

    def left(self) -> str:
        """Return the remaining time as text; empty before the first step is done."""
        if not self._done:
            return ""
        left_s = (self._seconds() - self._began) / self._done * max(0, self._steps - self._done)
        return f", {left_s:.0f} s left" if left_s < 90 else f", {left_s / 60:.0f} min left"

    def close(self) -> None:
        """Clear the progress bar."""
        progress("", 1, 1)
