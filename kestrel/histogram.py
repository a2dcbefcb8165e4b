"""Histograms of whole numbers, with counts and approximate quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from operator import add
from typing import Final

_EXACT: Final = 16
"""Smaller numbers have a bucket each. From there on eight buckets share each doubling, so that a bucket's middle is
within 6 % of all numbers in it."""


def bucket_index(value: int) -> int:
    """Return the index of the histogram bucket that counts a number. Negative numbers count as 0."""
    if value < _EXACT:
        return value if value > 0 else 0
    shift = value.bit_length() - 4
    return (shift << 3) + (value >> shift)


def bucket_start(bucket: int) -> int:
    """Return the smallest number that the bucket with that index counts."""
    if bucket < _EXACT:
        return bucket
    shift = (bucket >> 3) - 1
    return ((bucket & 7) + 8) << shift


class Histogram:
    """A histogram of measured numbers. It takes some hundred bytes, and a few KB at most."""

    __slots__ = ("_buckets", "_count", "_last", "_maximum", "_minimum", "_sum", "_times")

    def __init__(self) -> None:
        self._buckets: list[int] = []
        self._count = self._sum = self._minimum = self._maximum = 0
        self._last = 0
        """The number that was added last. Most numbers of a queue are equal to the one before."""
        self._times = 0
        """How often `_last` was added without being counted in the other attributes."""

    def add(self, value: int, times: int = 1) -> None:
        """Add `value`, `times` times."""
        if value != self._last:
            self._count_last()
            self._last = value
        self._times += times

    def _count_last(self) -> None:
        times, self._times = self._times, 0
        if not times:
            return
        value = max(0, self._last)  # negative if a clock was set back
        bucket = bucket_index(value)
        buckets = self._buckets
        if bucket >= len(buckets):
            buckets.extend([0] * (bucket + 1 - len(buckets)))
        buckets[bucket] += times
        self._maximum = max(value, self._maximum)
        self._minimum = min(value, self._minimum) if self._count else value
        self._count += times
        self._sum += value * times

    @property
    def buckets(self) -> list[int]:
        """Counts of the buckets, up to the highest one used."""
        self._count_last()
        return self._buckets

    @property
    def count(self) -> int:
        return self._count + self._times

    @property
    def sum(self) -> int:
        self._count_last()
        return self._sum

    @property
    def minimum(self) -> int:
        """The smallest number, or 0 if there are none."""
        self._count_last()
        return self._minimum

    @property
    def maximum(self) -> int:
        self._count_last()
        return self._maximum

    def merge(self, other: Histogram) -> None:
        """Add all numbers of `other`."""
        if not other.count:
            return
        mine, theirs = self.buckets, other.buckets
        if len(mine) == len(theirs):
            self._buckets = list(map(add, mine, theirs))
        else:
            self._buckets = [a + b for a, b in zip_longest(mine, theirs, fillvalue=0)]
        self._maximum = max(self._maximum, other.maximum)
        self._minimum = min(self._minimum, other.minimum) if self._count else other.minimum
        self._count += other.count
        self._sum += other.sum

    def copy(self) -> Histogram:
        """Return an independent copy."""
        same = Histogram()
        same.merge(self)
        return same

    def since(self, earlier: Histogram) -> Histogram:
        """Return the numbers added since `earlier` was copied from this histogram, or all if this one was reset since.

        The minimum and maximum of the result are bounds of their buckets.
        """
        buckets = [a - b for a, b in zip_longest(self.buckets, earlier.buckets, fillvalue=0)]
        filled = [place for place, times in enumerate(buckets) if times]
        if not filled:
            return Histogram()
        if min(buckets) < 0:
            return self.copy()
        newer = Histogram()
        newer._buckets = buckets
        newer._count = self.count - earlier.count
        newer._sum = self.sum - earlier.sum
        newer._minimum = max(self.minimum, bucket_start(filled[0]))
        newer._maximum = min(self.maximum, bucket_start(filled[-1] + 1) - 1)
        return newer

    def quantiles(self, shares: Sequence[float]) -> list[int]:
        """Return for each share (0 to 1, rising) the approximate number that such a share of all does not exceed.

        The numbers are 0 if the histogram is empty.
        """
        found: list[int] = []
        passed, wanted = 0, len(shares)
        for bucket, times in enumerate(self.buckets):
            passed += times
            while times and len(found) < wanted and passed >= shares[len(found)] * self.count:
                middle = (bucket_start(bucket) + bucket_start(bucket + 1)) // 2
                found.append(min(max(middle, self.minimum), self.maximum))
            if len(found) == wanted:
                break
        return found + [self.maximum] * (wanted - len(found))

    def count_below(self, bound: int) -> int:
        """Return the exact count of numbers below `bound`, which is a power of two or at most 16."""
        return sum(self.buckets[: bucket_index(bound)])
