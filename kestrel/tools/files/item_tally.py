"""Statistics of the items of one queue."""

from __future__ import annotations


class ItemTally:
    """Number, size and age of items, counted one by one."""

    __slots__ = ("data_bytes", "expired", "items", "newest_ms", "now_ms", "oldest_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.items = 0
        self.data_bytes = 0
        self.expired = 0
        """Items past their own expiry. The queue's `maxAge` is not known here."""
        self.oldest_ms: int | None = None
        self.newest_ms: int | None = None

    def add(self, size: int, add_ms: int, expiry_ms: int) -> None:
        """Count an item of `size` bytes. An `expiry_ms` of 0 means that it does not expire."""
        self.items += 1
        self.data_bytes += size
        self.expired += 0 < expiry_ms < self.now_ms
        if self.oldest_ms is None or self.newest_ms is None:
            self.oldest_ms = self.newest_ms = add_ms
        elif add_ms > self.newest_ms:
            self.newest_ms = add_ms
        elif add_ms < self.oldest_ms:
            self.oldest_ms = add_ms

    def join(self, other: ItemTally) -> None:
        """Add the counts of another tally."""
        self.items += other.items
        self.data_bytes += other.data_bytes
        self.expired += other.expired
        for add_ms in (other.oldest_ms, other.newest_ms):
            if add_ms is not None:
                self.oldest_ms = add_ms if self.oldest_ms is None else min(self.oldest_ms, add_ms)
                self.newest_ms = add_ms if self.newest_ms is None else max(self.newest_ms, add_ms)
