"""The set of item ids that a reader is done with: all ids up to its head, and ranges of ids after it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

_MAX_SPENT: Final = 1024


class DoneSet:
    """A set of ids that are done: all ids up to `head`, and ranges after it. A range takes 16 bytes.

    Adding an id directly after the head or the last range needs no search. Adding one in between moves later ranges.
    """

    __slots__ = ("_firsts", "_lasts", "_spent", "head")

    def __init__(self, head: int = 0) -> None:
        self.head = head
        self._firsts: array[int] = array("q")
        self._lasts: array[int] = array("q")
        self._spent = 0
        """Number of ranges at the beginning that the head has passed. They are removed in batches to save time."""

    def add(self, first: int, last: int | None = None) -> None:
        """Add the ids from `first` to `last`, or only `first`. Some of them may be in the set already."""
        if last is None:
            last = first
        if first > self.head + 1:
            self._insert(first, last)
        elif last > self.head:
            self.head = last
            if self._firsts:
                self._pass_ranges()

    def _insert(self, first: int, last: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        if last < first:
            return
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return
        if first == lasts[-1] + 1:
            lasts[-1] = last
            return
        # The ranges from `begin` up to, but not including, `end` touch the new one.
        begin = bisect_left(lasts, first - 1, self._spent)
        end = bisect_right(firsts, last + 1, begin)
        if begin == end:
            firsts.insert(begin, first)
            lasts.insert(begin, last)
            return
        firsts[begin] = min(first, firsts[begin])
        lasts[begin] = max(last, lasts[end - 1])
        if end > begin + 1:
            del firsts[begin + 1 : end], lasts[begin + 1 : end]

    def _pass_ranges(self) -> None:
        """Move the head over the ranges that it has reached."""
        reached = bisect_right(self._firsts, self.head + 1, self._spent)
        if reached > self._spent:
            self.head = max(self.head, self._lasts[reached - 1])
            self._spent = reached
        if self._spent == len(self._firsts) or self._spent > max(_MAX_SPENT, len(self._firsts) // 2):
            del self._firsts[: self._spent], self._lasts[: self._spent]
            self._spent = 0

    def __contains__(self, item_id: int) -> bool:
        if item_id <= self.head:
            return True
        index = bisect_left(self._lasts, item_id, self._spent)
        return index < len(self._firsts) and self._firsts[index] <= item_id

    def hole(self, item_id: int) -> tuple[int, int | None]:
        """Return the first and the last id of the next hole, which are ids from `item_id` on that are not done.

        The last id is None if the hole has no end.
        """
        first = max(item_id, self.head + 1)
        index = bisect_left(self._lasts, first, self._spent)
        if index < len(self._firsts) and self._firsts[index] <= first:
            first = self._lasts[index] + 1
            index += 1
        return first, self._firsts[index] - 1 if index < len(self._firsts) else None

    def holes(self, most: int) -> list[int]:
        """Return the first ids of the first holes: one after the head, and one after each of at most `most` ranges."""
        return [self.head + 1, *(last + 1 for last in self._lasts[self._spent : self._spent + most])]

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first and last id of each range after the head, sorted. There is a gap between any two."""
        return list(zip(self._firsts[self._spent :], self._lasts[self._spent :], strict=True))

    def __len__(self) -> int:
        """Return the number of ranges after the head."""
        return len(self._firsts) - self._spent

    @property
    def last(self) -> int:
        """The highest id in the set, or the head."""
        return self._lasts[-1] if self else self.head
