"""What has happened to a reader since it is there."""

from __future__ import annotations


class ReaderCounts:
    """Counts of one reader; they begin anew with each start of the program."""

    def __init__(self) -> None:
        self.puts = 0
        """Items that were put,"""
        self.put_bytes = 0
        """and their data."""
        self.get_hits = 0
        """Gets and peeks that brought an item,"""
        self.get_misses = 0
        """and None."""
        self.expired = 0
        """Items that expired,"""
        self.discarded = 0
        """and that were dropped for newer ones."""
        self.opened = 0
        """Reads that were opened,"""
        self.committed = 0
        """committed,"""
        self.canceled = 0
        """and given back."""
        self.flushes = 0
        """How often all items were dropped."""
