"""Changes to a queue of a `WindowedStorage` that its database does not have yet."""

from __future__ import annotations

from collections.abc import Iterable

from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue


class PendingChanges:
    """The changes to one queue that the next commit writes. A put and a removal of the same item cancel out."""

    __slots__ = ("bytes", "errors", "is_new", "puts", "removed")

    def __init__(self, is_new: bool = False) -> None:
        self.is_new = is_new
        """Whether the database must first delete everything stored under the queue's name. True for a queue that it
        does not know."""
        self.puts: dict[int, StoredItem] = {}
        """New items by position, lowest first."""
        self.bytes = 0
        """Bytes of data of `puts`."""
        self.removed: list[tuple[int, int]] = []
        """Inclusive ranges of positions, in no order."""
        self.errors: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.is_new or self.puts or self.removed or self.errors)

    def put(self, item: StoredItem) -> None:
        """Add a new item. Its position is greater than all others."""
        self.puts[item.position] = item
        self.bytes += len(item.data)

    def remove(self, position: int) -> None:
        """Remove the item at `position`."""
        put = self.puts.pop(position, None)
        if put is not None:
            self.bytes -= len(put.data)
            return
        self.errors.pop(position, None)
        if self.removed and self.removed[-1][1] == position - 1:
            self.removed[-1] = (self.removed[-1][0], position)
        else:
            self.removed.append((position, position))

    def remove_all_but(self, kept: Iterable[int], first: int, last: int) -> None:
        """Remove all items from `first` to `last`, inclusive, except those at the positions `kept`, which are in
        ascending order.
        """
        keeping = list(kept)
        self.puts = {position: self.puts[position] for position in keeping if position in self.puts}
        self.bytes = sum(len(item.data) for item in self.puts.values())
        self.errors = {position: self.errors[position] for position in keeping if position in self.errors}
        self.removed = []  # the ranges below include all of these
        for position in (*keeping, last + 1):
            if first < position:
                self.removed.append((first, position - 1))
            first = position + 1

    def fail(self, item: StoredItem) -> None:
        """Set the error count of an item."""
        if item.position in self.puts:
            self.puts[item.position] = item
        else:
            self.errors[item.position] = item.errors

    def seal(self, before: int, after: StoredQueue) -> QueueChanges:
        """Return the changes for the database to commit. This object is not cleared.

        Removals up to `after.floor` become one range from `before + 1`. The database has no items up to `before` now,
        and will have none up to `after.floor`.
        """
        ranges = [each for each in self.removed if each[1] > after.floor]
        if len(ranges) < len(self.removed):
            ranges.append((before + 1, after.floor))
        removed = _merged(ranges)
        return QueueChanges(after, self.is_new, False, removed, list(self.puts.values()), self.errors)


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
