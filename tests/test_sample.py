"""A sample of places has every kind of place, and can be made all of them."""

from __future__ import annotations

import pytest

from tests import sample


@pytest.fixture(autouse=True)
def a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says."""
    monkeypatch.setattr(sample, "EVERY_PLACE", False)
    monkeypatch.setattr(sample, "FEWER", 1)


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 11, 50])
@pytest.mark.parametrize("borders", [(), (1,), (5,), (5, 6), (5, 7, 8, 9), (10,), (11, 30), (49,), (50,)])
def test_both_sides_of_each_change_are_looked_at(count: int, borders: tuple[int, ...]) -> None:
    seen = sample.beside_changes(count, 10, lambda place: sum(place >= border for border in borders))
    assert list(seen) == sorted(seen)
    assert {0, count, *range(0, count, 10)} <= {*seen} <= {*range(count + 1)}
    for border in borders:
        assert {border - 1, border, border + 1} & {*range(count + 1)} <= {*seen} or border > count


def test_no_place_is_looked_at_twice_and_few_where_nothing_changes() -> None:
    looked: list[int] = []
    sample.beside_changes(100, 10, lambda place: looked.append(place))
    assert sorted(looked) == list(range(0, 101, 10))


def test_every_place_is_looked_at_when_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "EVERY_PLACE", True)
    assert list(sample.beside_changes(100, 10, lambda place: None)) == list(range(101))
    assert sample.of_each_kind("aaaa", 3) == [0, 1, 2, 3]


def test_the_first_and_the_last_of_each_kind_are_taken_and_some_between() -> None:
    assert sample.of_each_kind("aaaaaaabaac", 4) == [0, 4, 7, 8, 9, 10]
    assert sample.of_each_kind("", 4) == []


def test_of_a_small_sample_there_is_a_third_and_every_kind_of_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "FEWER", 3)
    assert list(sample.beside_changes(100, 10, lambda place: None)) == [0, 30, 60, 90, 100]
    assert {50, 51, 52} <= {*sample.beside_changes(100, 10, lambda place: place > 50)}
    assert sample.of_each_kind("aaaaaaabaac", 2) == [0, 6, 7, 9, 10]
    assert [place for place in range(9) if sample.is_tried(place)] == [0, 3, 6]
    assert sample.examples(100) == 33


def test_every_place_is_tried_also_where_a_small_sample_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "FEWER", 3)
    monkeypatch.setattr(sample, "EVERY_PLACE", True)
    assert list(sample.beside_changes(100, 10, lambda place: None)) == list(range(101))
    assert all(map(sample.is_tried, range(9)))
