"""Ledger of stored and taken items, with one byte for each."""

from __future__ import annotations

from typing import Final

from kestrel.load.numbered_items import NumberedItems, UnknownItem

_STORED: Final = 1
_SEEN: Final = 2


class Ledger:
    """A record of the items of a run by number, with counts of unexpected ones."""

    def __init__(self, items: NumberedItems, total: int) -> None:
        self.items = items
        self.total = total
        self._states = bytearray(total)
        self._next = 0
        self.stored = 0
        self.refused = 0
        """Number of items that a limit of the queue refused."""
        self.seen = 0
        """Number of different items that came."""
        self.doubled = 0
        self.foreign = 0
        self.spoiled = 0

    def next_number(self, end: int | None = None) -> int | None:
        """Return an unused number and mark it as used, or return None if all numbers below `end` are used.

        `end` is `total` by default.
        """
        if self._next >= (self.total if end is None else end):
            return None
        self._next += 1
        return self._next - 1

    @property
    def expected(self) -> int:
        """Number of items of the run that were not refused, and so must come."""
        return self.expected_below(self.total)

    def expected_below(self, end: int) -> int:
        """Return how many items must come, if only numbers below `end` have been put."""
        return end - self.refused

    @property
    def missing(self) -> int:
        """Number of items that the server stored and that did not come."""
        return self._states.count(_STORED)

    def add_put(self, number: int, is_stored: bool) -> None:
        """Record the server's answer to the put of an item."""
        if is_stored:
            self._states[number] |= _STORED
            self.stored += 1
        else:
            self.refused += 1

    def came(self, data: bytes) -> None:
        """Record an item that was taken and confirmed, whether or not it belongs to the run."""
        number = self.identify(data)
        if number is not None:
            self.done(number)

    def identify(self, data: bytes) -> int | None:
        """Return the number of an item of this run.

        Count an item of another client (foreign) or with changed content (spoiled), and return None.
        """
        number = self.items.number_of(data)
        if number is UnknownItem.FOREIGN:
            self.foreign += 1
        elif number is UnknownItem.SPOILED or number >= self.total:
            self.spoiled += 1
        else:
            return number
        return None

    def done(self, number: int) -> None:
        """Record that an item was taken and confirmed. Count it in `doubled` if it had come before."""
        if self._states[number] & _SEEN:
            self.doubled += 1
        else:
            self._states[number] |= _SEEN
            self.seen += 1
