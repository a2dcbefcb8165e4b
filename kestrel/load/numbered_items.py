"""Items that carry a number, by which each is recognised when it is taken, and a ledger of them.

They consist of letters, digits and dots: a line of text, which suits all protocols. The content after the number is
derived from it. So a changed item is detected without storing the original.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from random import Random
from string import ascii_letters
from typing import Final

MAX_ITEMS: Final = 100_000_000
"""Maximum number of items in a run. A number has nine digits, and the ledger one byte per item."""
LEAST_BYTES: Final = 24
"""Size of the shortest item: the run's mark and the number."""
MOST_BYTES: Final = 16 * 1024 * 1024

_SPREAD: Final = 2_654_435_761
"""Odd number near 2**32 divided by the golden ratio, so that neighbouring numbers get very different sizes."""


class UnknownItem(Enum):
    """Kind of an item without a valid number of this run."""

    FOREIGN = auto()
    """The item was put by another client or run."""
    SPOILED = auto()
    """The item is of this run, but its content has changed."""


class NumberedItems:
    """A maker of the items of a run, which also recognises them.

    `mark` is eight letters or digits that no other run has. Sizes are from `least` to `most` bytes and depend on
    `seed`.
    """

    def __init__(self, mark: str, least: int, most: int, seed: int) -> None:
        self._head = f"load.{mark}.".encode()
        self._number = re.compile(re.escape(self._head) + rb"([0-9]{9})\.")
        self._least = least
        self._span = most - least + 1
        self._seed = seed
        letters = "".join(Random(seed).choices(ascii_letters, k=1024)).encode()
        self._letters = (letters * (most // len(letters) + 1))[:most]

    def item(self, number: int) -> bytes:
        """Return the item with a number from 0 to `MAX_ITEMS` - 1."""
        head = b"%b%09d." % (self._head, number)
        return head + self._letters[: self._size(number) - len(head)]

    def number_of(self, data: bytes) -> int | UnknownItem:
        """Return the number of an item, or why it has none."""
        found = self._number.match(data)
        if found is None:
            return UnknownItem.SPOILED if data.startswith(self._head) else UnknownItem.FOREIGN
        number = int(found[1])
        return number if data == self.item(number) else UnknownItem.SPOILED

    def _size(self, number: int) -> int:
        return self._least + ((number + self._seed) * _SPREAD % (1 << 32)) * self._span // (1 << 32)


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
