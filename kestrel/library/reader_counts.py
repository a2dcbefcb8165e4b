"""Counters of a reader."""

from __future__ import annotations


class ReaderCounts:
    """Counters of one reader since the program started."""

    def __init__(self) -> None:
        self.puts = 0
        """Items put."""
        self.put_bytes = 0
        """Bytes of data put."""
        self.get_hits = 0
        """Gets and peeks that returned an item."""
        self.get_misses = 0
        """Gets and peeks that returned None."""
        self.expired = 0
        """Items that expired."""
        self.discarded = 0
        """Items dropped to make room for newer ones."""
        self.opened = 0
        """Reads opened."""
        self.committed = 0
        """Open reads committed."""
        self.canceled = 0
        """Open reads returned with `unget`."""
        self.flushes = 0
        """Calls of `flush`."""
