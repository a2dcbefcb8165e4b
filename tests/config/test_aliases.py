"""Aliases resolve to the queues that a put reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.load import loads
from kestrel.config.model import AliasSettings, Config, QueueOverrides
from kestrel.config.resolved import masked_queues, resolve_aliases


def resolved(destinations: Mapping[bytes, Sequence[bytes]]) -> dict[bytes, tuple[bytes, ...]]:
    return resolve_aliases(
        {name: AliasSettings(name=name, destination_queues=tuple(queues)) for name, queues in destinations.items()}
    )


def in_depth(destinations: Mapping[bytes, Sequence[bytes]], name: bytes) -> list[bytes]:
    """Resolve by simple recursion, which may take exponential time."""
    if name not in destinations:
        return [name]
    return [queue for each in destinations[name] for queue in in_depth(destinations, each)]


@pytest.mark.parametrize(
    ("destinations", "queues"),
    [
        # A parent is one destination, whatever its children.
        ({b"all": [b"a", b"a+x"]}, {b"all": (b"a", b"a+x")}),
        # A name like that of an alias's child is an ordinary queue.
        ({b"all": [b"more+x"], b"more": [b"a"]}, {b"all": (b"more+x",), b"more": (b"a",)}),
    ],
)
def test_name_like_that_of_a_child_is_an_ordinary_destination(
    destinations: dict[bytes, list[bytes]], queues: dict[bytes, tuple[bytes, ...]]
) -> None:
    assert resolved(destinations) == queues


def test_the_aliases_come_in_the_order_of_the_file() -> None:
    assert list(resolved({b"c": [b"b"], b"b": [b"a"], b"d": [b"c"]})) == [b"c", b"b", b"d"]


@pytest.mark.parametrize(
    "destinations",
    [{b"a": [b"a"]}, {b"a": [b"b"], b"b": [b"a"]}, {b"in": [b"x", b"a"], b"a": [b"b"], b"b": [b"c"], b"c": [b"a"]}],
)
def test_a_cycle_made_in_code_is_refused(destinations: dict[bytes, list[bytes]]) -> None:
    with pytest.raises(ValueError, match="cycle"):
        resolved(destinations)


def test_a_chain_of_aliases_may_exceed_the_recursion_limit() -> None:
    chain = {b"%d" % number: [b"%d" % (number + 1)] for number in range(5_000)}
    assert resolved(chain)[b"0"] == (b"5000",)


def test_exponentially_many_paths_are_resolved_quickly() -> None:
    # 2**200 paths lead from the first to the last.
    diamonds = {b"%d" % number: [b"%d" % (number + 1)] * 2 for number in range(200)}
    assert resolved(diamonds)[b"0"] == (b"200",)


@given(
    st.dictionaries(st.integers(0, 5), st.lists(st.integers(0, 9), min_size=1, max_size=3)).map(
        # Only to larger numbers, so that there is no cycle.
        lambda graph: {b"%d" % name: [b"%d" % (name + 1 + step) for step in steps] for name, steps in graph.items()}
    )
)
def test_aliases_resolve_depth_first(destinations: dict[bytes, list[bytes]]) -> None:
    assert resolved(destinations) == {name: tuple(dict.fromkeys(in_depth(destinations, name))) for name in destinations}


def test_an_alias_masks_the_queue_of_its_name() -> None:
    config = loads(
        """
        [[queues]]
        name = "seen"
        [[queues]]
        name = "hidden"
        [[queues]]
        name = "hidden+child"
        [[aliases]]
        name = "hidden"
        destinationQueues = ["seen"]
        [[aliases]]
        name = "all"
        destinationQueues = ["hidden"]
        """
    )
    assert masked_queues(config) == [b"hidden"]
    assert resolve_aliases(config.aliases)[b"all"] == (b"seen",)


def test_without_aliases_no_queue_is_masked() -> None:
    assert masked_queues(Config(queues={b"work": QueueOverrides()})) == []
