"""A predictable random generator."""

from __future__ import annotations

from random import Random
from typing import Any


class FirstOfAll(Random):
    """A random generator that chooses the first element, and the longest pause."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def uniform(self, a: float, b: float) -> float:
        return b
