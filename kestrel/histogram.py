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

    __slots__ = ("buckets", "count", "maximum", "minimum", "sum")

    def __init__(self) -> None:
        self.buckets: list[int] = []
        """Counts of the buckets, up to the highest one used."""
        self.count = 0
        self.sum = 0
        self.minimum = 0
        """The smallest number, or 0 if there are none."""
        self.maximum = 0

    def add(self, value: int, times: int = 1) -> None:
        """Add `value`, `times` times."""
        if value < 0:  # a clock was set back
            value = 0
        bucket = value if value < _EXACT else bucket_index(value)
        buckets = self.buckets
        if bucket >= len(buckets):
            buckets.extend([0] * (bucket + 1 - len(buckets)))
        buckets[bucket] += times
        if value > self.maximum:
            self.maximum = value
        if not self.count or value < self.minimum:
            self.minimum = value
        self.count += times
        self.sum += value * times

    def merge(self, other: Histogram) -> None:
        """Add all numbers of `other`."""
        if not other.count:
            return
        mine, theirs = self.buckets, other.buckets
        if len(mine) == len(theirs):
            self.buckets = list(map(add, mine, theirs))
        else:
            self.buckets = [a + b for a, b in zip_longest(mine, theirs, fillvalue=0)]
        self.maximum = max(self.maximum, other.maximum)
        self.minimum = min(self.minimum, other.minimum) if self.count else other.minimum
        self.count += other.count
        self.sum += other.sum

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
        newer.buckets = buckets
        newer.count = self.count - earlier.count
        newer.sum = self.sum - earlier.sum
        newer.minimum = max(self.minimum, bucket_start(filled[0]))
        newer.maximum = min(self.maximum, bucket_start(filled[-1] + 1) - 1)
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
