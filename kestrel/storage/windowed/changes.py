"""What was recorded on a queue of a `WindowedStorage` and is not in its database yet."""

from __future__ import annotations

from collections.abc import Iterable

from kestrel.storage.database import QueueChanges, StoredItem, StoredQueue


class PendingChanges:
    """What one commit will write of a queue. What it takes back again is never written."""

    __slots__ = ("bytes", "errors", "is_new", "puts", "removed")

    def __init__(self, is_new: bool = False) -> None:
        self.is_new = is_new
        """Whether the database does not know the queue, or another one under its name, which has to go first."""
        self.puts: dict[int, StoredItem] = {}
        """By position, lowest first."""
        self.bytes = 0
        """Their data, in bytes."""
        self.removed: list[tuple[int, int]] = []
        """Ranges of positions, in no order; both ends are part of them."""
        self.errors: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.is_new or self.puts or self.removed or self.errors)

    def put(self, item: StoredItem) -> None:
        """A new item, behind all others."""
        self.puts[item.position] = item
        self.bytes += len(item.data)

    def remove(self, position: int) -> None:
        """No item is to stand there."""
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
        """Of all positions from `first` to `last` these keep their items; lowest first."""
        keeping = list(kept)
        self.puts = {position: self.puts[position] for position in keeping if position in self.puts}
        self.bytes = sum(len(item.data) for item in self.puts.values())
        self.errors = {position: self.errors[position] for position in keeping if position in self.errors}
        self.removed = []  # all of it is in what follows
        for position in (*keeping, last + 1):
            if first < position:
                self.removed.append((first, position - 1))
            first = position + 1

    def fail(self, item: StoredItem) -> None:
        """An item has as many errors as it says."""
        if item.position in self.puts:
            self.puts[item.position] = item
        else:
            self.errors[item.position] = item.errors

    def seal(self, before: int, after: StoredQueue) -> QueueChanges:
        """All of it, as it goes to the database.

        No item stands at `after.floor` or below, and none at `before` or below was there before: so however many went
        in between, they go as one range.
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
