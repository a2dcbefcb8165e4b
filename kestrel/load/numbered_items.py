"""Items that carry a number, so that each is known again wherever it comes.

They are letters, digits and dots: a line of text, which fits all protocols. What stands behind the number follows from
it, so that an item that was changed on its way is known too, without any of them being kept.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from random import Random
from string import ascii_letters
from typing import Final

MAX_ITEMS: Final = 100_000_000
"""Of one run: a number has nine digits, and the ledger a byte for each."""
LEAST_BYTES: Final = 24
"""The shortest item: the mark of the run, and the number."""
MOST_BYTES: Final = 16 * 1024 * 1024

_SPREAD: Final = 2_654_435_761
"""Odd, and near 2**32 over the golden ratio: neighbouring numbers get sizes far apart."""


class UnknownItem(Enum):
    """What an item is that has no number here."""

    FOREIGN = auto()
    """It was put by somebody else, or by another run."""
    SPOILED = auto()
    """It is of this run, and is not what was put."""


class NumberedItems:
    """Makes the items of a run, and knows them again.

    `mark` is eight letters or digits that no other run has; sizes are from `least` to `most` bytes, by `seed`.
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
        """The item with that number, from 0 on and below `MAX_ITEMS`."""
        head = b"%b%09d." % (self._head, number)
        return head + self._letters[: self._size(number) - len(head)]

    def number_of(self, data: bytes) -> int | UnknownItem:
        """The number of an item that came."""
        found = self._number.match(data)
        if found is None:
            return UnknownItem.SPOILED if data.startswith(self._head) else UnknownItem.FOREIGN
        number = int(found[1])
        return number if data == self.item(number) else UnknownItem.SPOILED

    def _size(self, number: int) -> int:
        return self._least + ((number + self._seed) * _SPREAD % (1 << 32)) * self._span // (1 << 32)
