"""Cycles of routes are found."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.item_routes import find_cycles

graphs = st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=4))


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({}, []),
        ({"a": ["b"], "b": []}, []),
        ({"a": ["b", "c"], "b": ["c"], "c": ["d"]}, []),
        ({"a": ["a"]}, [["a"]]),
        ({"a": ["b"], "b": ["a"]}, [["a", "b"]]),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, [["b", "c"]]),
        ({"a": ["a"], "b": ["c"], "c": ["b"]}, [["a"], ["b", "c"]]),
        ({"a": ["b", "c"], "b": ["a"], "c": ["a"]}, [["a", "b"], ["a", "c"]]),
    ],
)
def test_cycles_are_found_in_the_order_of_the_edges(edges: dict[str, list[str]], found: list[list[str]]) -> None:
    assert list(find_cycles(edges)) == found


@given(graphs)
def test_exactly_the_graphs_with_cycles_are_found(edges: dict[str, list[str]]) -> None:
    try:
        TopologicalSorter(edges).prepare()
        has_circle = False
    except CycleError:
        has_circle = True
    found = list(find_cycles(edges))
    assert bool(found) == has_circle
    for circle in found:
        assert all(following in edges[name] for name, following in zip(circle, circle[1:] + circle[:1], strict=True))


def test_a_path_may_exceed_the_recursion_limit() -> None:
    chain = {str(number): [str(number + 1)] for number in range(5_000)}
    assert list(find_cycles(chain)) == []
    assert [len(circle) for circle in find_cycles(chain | {"5000": ["0"]})] == [5_001]
