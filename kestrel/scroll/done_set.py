"""What a reader is done with: everything up to its head, and ranges of ids beyond it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

_MAX_SPENT: Final = 1024


class DoneSet:
    """Ids that are done. `head`: everything up to it is. A range beyond it takes 16 bytes, however long it is.

    An id right behind the head or the last range costs no search. One in between moves what is behind it.
    """

    __slots__ = ("_firsts", "_lasts", "_spent", "head")

    def __init__(self, head: int = 0) -> None:
        self.head = head
        self._firsts: array[int] = array("q")
        self._lasts: array[int] = array("q")
        self._spent = 0
        """How many ranges at the beginning the head has passed: they go together, since removing one moves the rest."""

    def add(self, first: int, last: int | None = None) -> None:
        """The ids from first to last, or that one alone, are done. Some of them may be already."""
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
        begin = bisect_left(lasts, first - 1, self._spent)  # the first range that touches it, or stands behind it
        end = bisect_right(firsts, last + 1, begin)  # the first one that is behind it
        if begin == end:
            firsts.insert(begin, first)
            lasts.insert(begin, last)
            return
        firsts[begin] = min(first, firsts[begin])
        lasts[begin] = max(last, lasts[end - 1])
        if end > begin + 1:
            del firsts[begin + 1 : end], lasts[begin + 1 : end]

    def _pass_ranges(self) -> None:
        """Let the head go on over the ranges that it has reached."""
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
        """The next ids from that one on that are not done: the first and the last of them, or None if there is no last.
        """
        first = max(item_id, self.head + 1)
        index = bisect_left(self._lasts, first, self._spent)
        if index < len(self._firsts) and self._firsts[index] <= first:
            first = self._lasts[index] + 1
            index += 1
        return first, self._firsts[index] - 1 if index < len(self._firsts) else None

    def holes(self, most: int) -> list[int]:
        """The first ids of so many such holes."""
        return [self.head + 1, *(last + 1 for last in self._lasts[self._spent : self._spent + most])]

    def ranges(self) -> list[tuple[int, int]]:
        """What is done beyond the head, from the first to the last id of each range: sorted, with gaps between."""
        return list(zip(self._firsts[self._spent :], self._lasts[self._spent :], strict=True))

    def __len__(self) -> int:
        """How many ranges that is."""
        return len(self._firsts) - self._spent

    @property
    def last(self) -> int:
        """The highest id that is done, or the head."""
        return self._lasts[-1] if self else self.head
