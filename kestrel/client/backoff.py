"""How long a server that failed is left alone."""

from __future__ import annotations

from random import Random
from typing import Final

INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 60.0


class Backoff:
    """The pauses of one server: twice as long after each failure, up to `longest_s`, less a random part.

    Without the random part all clients of a server that was away would come back in the same moment.
    """

    def __init__(self, random: Random, first_s: float = INITIAL_BACKOFF_S, longest_s: float = MAX_BACKOFF_S) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self.ends_s = float("-inf")
        """When it may be tried again, on the clock of whoever told `failed`."""

    def failed(self, now_s: float) -> float:
        """It failed: how long to leave it alone, in seconds. Between half of the pause and all of it."""
        pause_s = self._next_s * self._random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        self.ends_s = now_s + pause_s
        return pause_s

    def answered(self) -> None:
        """It is there: the next pause is the first again."""
        self._next_s = self._first_s
        self.ends_s = float("-inf")
