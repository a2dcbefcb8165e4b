"""The memory budget (maxTotalMemory), shared by the items of all queues and the replies that wait to be sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ITEM_BYTES: Final = 80
"""Memory of an item in addition to its data, in bytes (docs/performance.md)."""


class MemoryLimit:
    """The memory that all shares use, and its limit `most_bytes`. None means no limit."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._is_lifted = False

    @property
    def is_reached(self) -> bool:
        return self.most_bytes is not None and self.used_bytes >= self.most_bytes and not self._is_lifted

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Ignore the limit in the block. Its puts replace items that are counted elsewhere."""
        was_lifted, self._is_lifted = self._is_lifted, True
        try:
            yield
        finally:
            self._is_lifted = was_lifted


class MemoryShare:
    """The memory of one queue, or of the waiting replies of one connection."""

    __slots__ = ("_limit", "bytes")

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self.bytes = 0

    def set_bytes(self, size: int) -> None:
        """Set the memory that this share uses, and update the total."""
        self._limit.used_bytes += size - self.bytes
        self.bytes = size
