"""Samples of places."""

from __future__ import annotations

import pytest

from tests import sample


@pytest.fixture(autouse=True)
def default_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the environment."""
    monkeypatch.setattr(sample, "EVERY_PLACE", False)
    monkeypatch.setattr(sample, "FEWER", 1)


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 11, 50])
@pytest.mark.parametrize("borders", [(), (1,), (5,), (5, 6), (5, 7, 8, 9), (10,), (11, 30), (49,), (50,)])
def test_both_sides_of_each_change_are_sampled(count: int, borders: tuple[int, ...]) -> None:
    seen = sample.beside_changes(count, 10, lambda place: sum(place >= border for border in borders))
    assert list(seen) == sorted(seen)
    assert {0, count, *range(0, count, 10)} <= {*seen} <= {*range(count + 1)}
    for border in borders:
        assert {border - 1, border, border + 1} & {*range(count + 1)} <= {*seen} or border > count


def test_places_are_tried_once_and_few_without_changes() -> None:
    looked: list[int] = []
    sample.beside_changes(100, 10, lambda place: looked.append(place))
    assert sorted(looked) == list(range(0, 101, 10))


def test_every_place_is_tried_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "EVERY_PLACE", True)
    assert list(sample.beside_changes(100, 10, lambda place: None)) == list(range(101))
    assert sample.of_each_kind("aaaa", 3) == [0, 1, 2, 3]


def test_first_and_last_of_each_kind_are_sampled() -> None:
    assert sample.of_each_kind("aaaaaaabaac", 4) == [0, 4, 7, 8, 9, 10]
    assert sample.of_each_kind("", 4) == []


def test_small_sample_has_a_third_and_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "FEWER", 3)
    assert list(sample.beside_changes(100, 10, lambda place: None)) == [0, 30, 60, 90, 100]
    assert {50, 51, 52} <= {*sample.beside_changes(100, 10, lambda place: place > 50)}
    assert sample.of_each_kind("aaaaaaabaac", 2) == [0, 6, 7, 9, 10]
    assert [place for place in range(9) if sample.is_tried(place)] == [0, 3, 6]
    assert sample.examples(100) == 33


def test_every_place_overrides_a_small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "FEWER", 3)
    monkeypatch.setattr(sample, "EVERY_PLACE", True)
    assert list(sample.beside_changes(100, 10, lambda place: None)) == list(range(101))
    assert all(map(sample.is_tried, range(9)))
