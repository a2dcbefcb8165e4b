"""Backoff times of a server that failed."""

from __future__ import annotations

from random import Random
from typing import Final

INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 60.0


class Backoff:
    """The backoff times of one server: doubled after each failure, up to `longest_s`, and shortened at random.

    The random part prevents all clients from returning to a restarted server at the same moment.
    """

    def __init__(self, random: Random, first_s: float = INITIAL_BACKOFF_S, longest_s: float = MAX_BACKOFF_S) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self.ends_s = float("-inf")
        """Time at which the server may be tried again, on the clock of the `now_s` passed to `failed`."""

    def failed(self, now_s: float) -> float:
        """Note a failure. Return the backoff time in seconds, between half of the current maximum and all of it."""
        pause_s = self._next_s * self._random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        self.ends_s = now_s + pause_s
        return pause_s

    def answered(self) -> None:
        """Note an answer: the backoff ends, and the next one starts with `first_s` again."""
        self._next_s = self._first_s
        self.ends_s = float("-inf")
