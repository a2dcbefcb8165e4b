"""Which items were stored, and which came back: a byte for each, however large they are."""

from __future__ import annotations

from typing import Final

from kestrel.load.numbered_items import NumberedItems, UnknownItem

_STORED: Final = 1
_SEEN: Final = 2


class Ledger:
    """The items of a run, by their numbers, and how many came that should not."""

    def __init__(self, items: NumberedItems, total: int) -> None:
        self.items = items
        self.total = total
        self._states = bytearray(total)
        self._next = 0
        self.stored = 0
        self.refused = 0
        """Of these the queue would not have any: a limit."""
        self.seen = 0
        """How many different ones came."""
        self.doubled = 0
        self.foreign = 0
        self.spoiled = 0

    def next_number(self, end: int | None = None) -> int | None:
        """The next number that nobody has put; None when all below `end`, or all that there are, have been given."""
        if self._next >= (self.total if end is None else end):
            return None
        self._next += 1
        return self._next - 1

    @property
    def expected(self) -> int:
        """How many are to come: those that were not refused."""
        return self.expected_below(self.total)

    def expected_below(self, end: int) -> int:
        """How many of those are to come that are numbered below `end`, when no more have been put."""
        return end - self.refused

    @property
    def missing(self) -> int:
        """How many the server said that it stored and that did not come."""
        return self._states.count(_STORED)

    def add_put(self, number: int, is_stored: bool) -> None:
        """The server's answer to a put."""
        if is_stored:
            self._states[number] |= _STORED
            self.stored += 1
        else:
            self.refused += 1

    def came(self, data: bytes) -> None:
        """That was taken for good."""
        number = self.identify(data)
        if number is not None:
            self.done(number)

    def identify(self, data: bytes) -> int | None:
        """The number of that item; None for one that has none, which is counted."""
        number = self.items.number_of(data)
        if number is UnknownItem.FOREIGN:
            self.foreign += 1
        elif number is UnknownItem.SPOILED or number >= self.total:
            self.spoiled += 1
        else:
            return number
        return None

    def done(self, number: int) -> None:
        """That one was taken for good, and should not come again."""
        if self._states[number] & _SEEN:
            self.doubled += 1
        else:
            self._states[number] |= _SEEN
            self.seen += 1
