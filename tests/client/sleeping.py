"""Time for those who wait by sleeping."""

from __future__ import annotations

from collections.abc import Callable


class Time:
    """A clock that goes on while somebody sleeps, and only then; what is due then happens."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_s: list[float] = []
        self.at_each_pause: Callable[[], None] = lambda: None

    def seconds(self) -> float:
        """What it shows."""
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        """Let so much time go by."""
        assert pause_s > 0
        self.pauses_s.append(pause_s)
        self.now_s += pause_s
        self.at_each_pause()
