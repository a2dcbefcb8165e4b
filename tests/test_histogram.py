"""Histograms: what they tell of numbers, against a list of the same numbers."""

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


def of(numbers: Sequence[int]) -> Histogram:
    histogram = Histogram()
    for number in numbers:
        histogram.add(number)
    return histogram


def told(histogram: Histogram) -> tuple[int, int, int, int, list[int]]:
    filled = [*histogram.buckets]
    while filled and not filled[-1]:
        filled.pop()
    return histogram.count, histogram.sum, histogram.minimum, histogram.maximum, filled


@given(NUMBERS)
def test_a_number_lies_in_its_bucket(number: int) -> None:
    bucket = bucket_index(number)
    assert bucket_start(bucket) <= number < bucket_start(bucket + 1)


@given(st.integers(0, 400))
def test_a_bucket_begins_with_a_number_that_falls_into_it(bucket: int) -> None:
    assert bucket_index(bucket_start(bucket)) == bucket
    assert bucket_index(bucket_start(bucket + 1) - 1) == bucket


@given(LISTS)
def test_count_sum_least_and_most_are_exact(numbers: list[int]) -> None:
    histogram = of(numbers)
    assert (histogram.count, histogram.sum) == (len(numbers), sum(numbers))
    assert (histogram.minimum, histogram.maximum) == (min(numbers, default=0), max(numbers, default=0))


@given(LISTS.filter(bool))
def test_percentiles_are_within_a_sixteenth(numbers: list[int]) -> None:
    in_order = sorted(numbers)
    for share, found in zip(SHARES, of(numbers).quantiles(SHARES), strict=True):
        exact = in_order[max(1, ceil(share * len(numbers))) - 1]
        assert abs(found - exact) <= exact * 0.065, share


def test_of_no_numbers_percentiles_are_nought() -> None:
    assert Histogram().quantiles(SHARES) == [0] * len(SHARES)


@given(LISTS, LISTS)
def test_a_merge_is_as_if_all_had_been_added(one: list[int], other: list[int]) -> None:
    together = of(one)
    together.merge(of(other))
    assert told(together) == told(of(one + other))


@given(LISTS, LISTS)
def test_a_copy_does_not_grow_with_what_it_was_copied_of(one: list[int], other: list[int]) -> None:
    histogram = of(one)
    copy = histogram.copy()
    for number in other:
        histogram.add(number)
    assert told(copy) == told(of(one))


@given(LISTS, LISTS)
def test_since_is_what_came_in_between(before: list[int], after: list[int]) -> None:
    histogram = of(before)
    earlier = histogram.copy()
    for number in after:
        histogram.add(number)
    newer, exact = histogram.since(earlier), of(after)
    assert (newer.count, newer.sum, told(newer)[4]) == (exact.count, exact.sum, told(exact)[4])
    if after:
        assert bucket_index(newer.minimum) == bucket_index(exact.minimum)
        assert bucket_index(newer.maximum) == bucket_index(exact.maximum)
        assert newer.minimum <= exact.minimum
        assert newer.maximum >= exact.maximum


@given(LISTS, LISTS)
def test_of_one_that_was_begun_anew_all_of_it_is_new(before: list[int], anew: list[int]) -> None:
    """It is seen where there are fewer of a size than there were."""
    earlier, histogram = of(before), of(anew)
    if any(earlier.count_below(1 << power) > histogram.count_below(1 << power) for power in range(62)):
        assert told(histogram.since(earlier)) == told(histogram)


@given(LISTS, st.one_of(st.integers(0, 15), powers))
def test_how_many_are_below_a_power_of_two_is_exact(numbers: list[int], bound: int) -> None:
    assert of(numbers).count_below(bound) == sum(number < bound for number in numbers)


def test_a_number_that_was_measured_more_than_once_counts_so_often() -> None:
    histogram = Histogram()
    histogram.add(7, 3)
    assert told(histogram) == told(of([7, 7, 7]))


def test_a_clock_that_was_set_back_measures_nought() -> None:
    assert told(of([-5])) == told(of([0]))
