"""The ids that a reader is done with, in any order."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from kestrel.scroll import done_set
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.records import LARGEST_ID

STEPS = st.lists(st.tuples(st.integers(-3, 60), st.integers(-2, 8)), max_size=60)
"""The start of a range, and how much higher its last id is."""


def of(head: int, *ranges: tuple[int, int]) -> DoneSet:
    done = DoneSet(head)
    for first, last in ranges:
        done.add(first, last)
    return done


@given(st.integers(0, 10), STEPS)
@example(0, [(1, 0)] * 3)
@example(0, [(5, 0), (3, 0), (4, 0), (1, 1)])
@example(2, [(10, 2), (20, 2), (30, 2), (9, 22)])
def test_ids_are_held_in_as_few_ranges_as_possible(head: int, steps: list[tuple[int, int]]) -> None:
    done, model = DoneSet(head), set(range(-10, head + 1))
    for first, more in steps:
        done.add(first, first + more)
        model.update(range(first, first + more + 1))
        assert [each for each in range(-10, 80) if each in done] == sorted(model)
        beyond = [each for each in sorted(model) if each > done.head]
        assert done.head + 1 not in model
        assert [each for first, last in done.ranges() for each in range(first, last + 1)] == beyond
        gaps = zip(done.ranges(), done.ranges()[1:], strict=False)
        assert all(last + 1 < first for (_, last), (first, _) in gaps)
        assert len(done) == len(done.ranges())
        assert done.last == max(model)


def test_largest_id_can_be_done() -> None:
    done = of(0, (LARGEST_ID, LARGEST_ID), (1, LARGEST_ID - 1))
    assert (done.head, len(done)) == (LARGEST_ID, 0)


@pytest.mark.parametrize("most_spent", [0, 3, 1 << 20])
def test_ranges_behind_the_head_are_gone_even_if_still_stored(monkeypatch: pytest.MonkeyPatch, most_spent: int) -> None:
    monkeypatch.setattr(done_set, "_MAX_SPENT", most_spent)
    done = DoneSet()
    for item_id in range(2, 100, 2):
        done.add(item_id)
    for item_id in range(1, 50, 2):
        done.add(item_id)
        assert (done.head, len(done)) == (item_id + 1, 49 - (item_id + 1) // 2)
        assert done.ranges()[0] == (item_id + 3, item_id + 3)
        assert item_id + 2 not in done and item_id + 3 in done
    done.add(53)
    done.add(57)
    assert done.ranges()[:3] == [(52, 54), (56, 58), (60, 60)]
    done.add(51, 97)
    assert (done.head, done.ranges(), done.last) == (98, [], 98)


# Holes.


def test_next_hole_is_found_from_any_id() -> None:
    done = of(3, (6, 7), (10, 12))
    assert [done.hole(item_id) for item_id in (0, 3, 4, 5)] == [(4, 5), (4, 5), (4, 5), (5, 5)]
    assert [done.hole(item_id) for item_id in (6, 7, 8, 9)] == [(8, 9), (8, 9), (8, 9), (9, 9)]
    assert [done.hole(item_id) for item_id in (10, 12, 13, 99)] == [(13, None), (13, None), (13, None), (99, None)]
    assert DoneSet(3).hole(1) == (4, None)


def test_starts_of_holes_skip_ranges_behind_the_head() -> None:
    done = of(0, (3, 4), (6, 7), (10, 12))
    assert (done.holes(0), done.holes(2), done.holes(9)) == ([1], [1, 5, 8], [1, 5, 8, 13])
    done.add(1, 2)
    assert (done.holes(0), done.holes(1), done.holes(9)) == ([5], [5, 8], [5, 8, 13])
