"""maxTotalMemory: how much memory items and held replies take together, and what of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ITEM_BYTES: Final = 80
"""What an item takes in memory beyond its data (docs/performance.md)."""


class MemoryLimit:
    """What all holders take, and the most that they may take together (None: as much as they want)."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._is_lifted = False

    @property
    def is_reached(self) -> bool:
        """Whether nobody is to take more."""
        return self.most_bytes is not None and self.used_bytes >= self.most_bytes and not self._is_lifted

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Meanwhile the limit does not hold: what is put takes the place of what is counted elsewhere."""
        was_lifted, self._is_lifted = self._is_lifted, True
        try:
            yield
        finally:
            self._is_lifted = was_lifted


class MemoryShare:
    """What one holder takes: a queue, or a connection's replies."""

    __slots__ = ("_bytes", "_limit")

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._bytes = 0

    def set_bytes(self, size: int) -> None:
        """It takes so many bytes."""
        self._limit.used_bytes += size - self._bytes
        self._bytes = size
