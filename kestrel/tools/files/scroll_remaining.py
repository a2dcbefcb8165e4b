"""Statistics of items, and counting the remaining items of each reader of a scroll in one pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final

from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.records import Targets

_NEVER: Final = sys.maxsize
_MOST_TARGETS: Final = 64
"""Distinct targets that are tallied separately before the tallies are added to the readers'."""


def iter_boundaries(done: DoneSet) -> Iterator[int]:
    """Yield ascending ids that alternately begin a range of remaining items and a range of done items."""
    yield done.head + 1
    for first, last in done.ranges():
        yield first
        yield last + 1


class RemainingItems:
    """Tallies of the remaining items of several readers.

    Between two boundaries of done ranges, the cost of an item does not depend on the number of readers.
    """

    def __init__(self, done: Mapping[bytes, DoneSet], now_ms: int) -> None:
        self._tallies = {reader: ItemTally(now_ms) for reader in done}
        self._now_ms = now_ms
        self._pending_tallies: dict[Targets | None, ItemTally] = {}
        """Tallies of the items since the last boundary, by target."""
        self._has_items = dict.fromkeys(done, False)
        self._rest = {reader: iter_boundaries(each) for reader, each in done.items()}
        self._next = [(next(rest), reader) for reader, rest in self._rest.items()]
        heapify(self._next)

    def add(self, item_id: int, size: int, add_ms: int, expiry_ms: int, targets: Targets | None) -> None:
        """Count the next item. Its id must be higher than all before it."""
        if self._next and self._next[0][0] <= item_id:
            self._change(item_id)
        tally = self._pending_tallies.get(targets)
        if tally is None:
            if len(self._pending_tallies) >= _MOST_TARGETS:
                self._tell()
            tally = self._pending_tallies[targets] = ItemTally(self._now_ms)
        tally.add(size, add_ms, expiry_ms)

    def _change(self, item_id: int) -> None:
        self._tell()
        while self._next[0][0] <= item_id:
            _, reader = self._next[0]
            self._has_items[reader] = not self._has_items[reader]
            heapreplace(self._next, (next(self._rest[reader], _NEVER), reader))

    def _tell(self) -> None:
        for targets, tally in self._pending_tallies.items():
            for reader in self._readers_of(targets):
                self._tallies[reader].join(tally)
        self._pending_tallies.clear()

    def _readers_of(self, targets: Targets | None) -> Sequence[bytes]:
        among = self._tallies if targets is None or targets.are_left_out else targets.readers
        return [each for each in among if self._has_items.get(each) and (targets is None or targets.has(each))]

    def tallies(self) -> Mapping[bytes, ItemTally]:
        """Return the tally of each reader."""
        self._tell()
        return self._tallies


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
