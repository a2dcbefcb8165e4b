"""Items that carry a number, by which each is recognised when it is taken.

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
