"""Histograms, compared with lists of the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from kestrel.histogram import Histogram, bucket_index, bucket_start

SHARES = (0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)

powers = st.integers(0, 60).map(lambda power: 1 << power)
NUMBERS = st.one_of(st.integers(0, 40), powers, powers.map(lambda power: power - 1), st.integers(0, 1 << 60))
LISTS = st.lists(NUMBERS, max_size=60)


def histogram_of(numbers: Sequence[int]) -> Histogram:
    histogram = Histogram()
    for number in numbers:
        histogram.add(number)
    return histogram


def state_of(histogram: Histogram) -> tuple[int, int, int, int, list[int]]:
    filled = [*histogram.buckets]
    while filled and not filled[-1]:
        filled.pop()
    return histogram.count, histogram.sum, histogram.minimum, histogram.maximum, filled


@given(NUMBERS)
def test_number_is_within_its_bucket(number: int) -> None:
    bucket = bucket_index(number)
    assert bucket_start(bucket) <= number < bucket_start(bucket + 1)


@given(st.integers(0, 400))
def test_bucket_contains_its_first_and_last_number(bucket: int) -> None:
    assert bucket_index(bucket_start(bucket)) == bucket
    assert bucket_index(bucket_start(bucket + 1) - 1) == bucket


@given(LISTS)
def test_count_sum_minimum_and_maximum_are_exact(numbers: list[int]) -> None:
    histogram = histogram_of(numbers)
    assert (histogram.count, histogram.sum) == (len(numbers), sum(numbers))
    assert (histogram.minimum, histogram.maximum) == (min(numbers, default=0), max(numbers, default=0))


@given(LISTS.filter(bool))
def test_percentiles_are_within_a_sixteenth(numbers: list[int]) -> None:
    in_order = sorted(numbers)
    for share, found in zip(SHARES, histogram_of(numbers).quantiles(SHARES), strict=True):
        exact = in_order[max(1, ceil(share * len(numbers))) - 1]
        assert abs(found - exact) <= exact * 0.065, share


def test_percentiles_without_numbers_are_0() -> None:
    assert Histogram().quantiles(SHARES) == [0] * len(SHARES)


@given(LISTS, LISTS)
def test_merge_equals_adding_all_numbers(one: list[int], other: list[int]) -> None:
    together = histogram_of(one)
    together.merge(histogram_of(other))
    assert state_of(together) == state_of(histogram_of(one + other))


@given(LISTS, LISTS)
def test_copy_is_independent(one: list[int], other: list[int]) -> None:
    histogram = histogram_of(one)
    copy = histogram.copy()
    for number in other:
        histogram.add(number)
    assert state_of(copy) == state_of(histogram_of(one))


@given(LISTS, LISTS)
def test_since_returns_the_numbers_added_later(before: list[int], after: list[int]) -> None:
    histogram = histogram_of(before)
    earlier = histogram.copy()
    for number in after:
        histogram.add(number)
    newer, exact = histogram.since(earlier), histogram_of(after)
    assert (newer.count, newer.sum, state_of(newer)[4]) == (exact.count, exact.sum, state_of(exact)[4])
    if after:
        assert bucket_index(newer.minimum) == bucket_index(exact.minimum)
        assert bucket_index(newer.maximum) == bucket_index(exact.maximum)
        assert newer.minimum <= exact.minimum
        assert newer.maximum >= exact.maximum


@given(LISTS, LISTS)
def test_since_an_unrelated_histogram_returns_all_numbers(before: list[int], restarted: list[int]) -> None:
    """A histogram is unrelated if it has fewer numbers of some size."""
    earlier, histogram = histogram_of(before), histogram_of(restarted)
    if any(earlier.count_below(1 << power) > histogram.count_below(1 << power) for power in range(62)):
        assert state_of(histogram.since(earlier)) == state_of(histogram)


@given(LISTS, st.one_of(st.integers(0, 15), powers))
def test_count_below_a_power_of_two_is_exact(numbers: list[int], bound: int) -> None:
    assert histogram_of(numbers).count_below(bound) == sum(number < bound for number in numbers)


def test_number_is_added_several_times() -> None:
    histogram = Histogram()
    histogram.add(7, 3)
    assert state_of(histogram) == state_of(histogram_of([7, 7, 7]))


def test_negative_number_counts_as_0() -> None:
    assert state_of(histogram_of([-5])) == state_of(histogram_of([0]))
