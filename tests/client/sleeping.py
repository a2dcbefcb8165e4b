"""A clock for code that sleeps."""

from __future__ import annotations

from collections.abc import Callable


class Time:
    """A clock that advances only in `sleep`, which then calls `at_each_pause`."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_s: list[float] = []
        self.at_each_pause: Callable[[], None] = lambda: None

    def seconds(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Advance the time."""
        assert pause_s > 0
        self.pauses_s.append(pause_s)
        self.now_s += pause_s
        self.at_each_pause()
