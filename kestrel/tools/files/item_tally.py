"""Items of one queue, counted one by one."""

from __future__ import annotations


class ItemTally:
    """How many items, how large, how old."""

    __slots__ = ("data_bytes", "expired", "items", "newest_ms", "now_ms", "oldest_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.items = 0
        self.data_bytes = 0
        self.expired = 0
        """Those that nobody will get any more, by their own expiry; a queue's maxAge is not known here."""
        self.oldest_ms: int | None = None
        self.newest_ms: int | None = None

    def add(self, size: int, add_ms: int, expiry_ms: int) -> None:
        """One item more, of that many bytes; an expiry of 0 is never."""
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
        """All of those more."""
        self.items += other.items
        self.data_bytes += other.data_bytes
        self.expired += other.expired
        for add_ms in (other.oldest_ms, other.newest_ms):
            if add_ms is not None:
                self.oldest_ms = add_ms if self.oldest_ms is None else min(self.oldest_ms, add_ms)
                self.newest_ms = add_ms if self.newest_ms is None else max(self.newest_ms, add_ms)
