"""Random histories of streams with failures: every item is delivered once, or at least once with open reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.ranges import GAP_IDS
from tests.spark.stream.fakes import A, B, C, World, numbered, opens, ranges
from tests.spark.stream.micro_batches import Checkpoint, Crash, Query

Step: TypeAlias = tuple[str, str, int]
"""A step: its kind, a server or the place in a batch, and a number."""

SETTINGS: Final = settings(deadline=None, max_examples=100)
NO_NUMBER: Final = st.just(0)


def step(name: str, words: list[str], number: st.SearchStrategy[int] = NO_NUMBER) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.sampled_from(words), number)


def histories(servers: list[str], *more: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    """Return histories of these steps and of those that every stream has."""
    common = [
        step("put", servers, st.integers(1, 5)),
        step("away", servers),
        step("back", servers),
        step("trigger", ["", "", "planned", "read", "written"]),
    ]
    return st.lists(st.one_of(*common, *more), max_size=35)


def check(
    world: World,
    history: list[Step],
    make_reader: Callable[..., Any],
    *members: str,
    failures: tuple[type[Exception], ...] = (Crash, SourceFailed),
) -> tuple[list[bytes], list[bytes]]:
    """Do all steps, then read what is left with all servers there. Return what was put, and what the sink has.

    A new query reads from `members`, which steps may change. It ends with one of these failures.
    """
    checkpoint = Checkpoint()
    put: list[bytes] = []
    query: Query | None = None
    for name, word, number in history:
        match name:
            case "put":
                put += numbered(len(put), number)
                world.put(word, *put[-number:])
            case "gap":
                world[word].next_id += number
            case "away" | "loses" | "back":
                world[word].is_away, world[word].loses_answers = name == "away", name == "loses"
            case "hold ends":
                world[word].hold_ends()
            case "join" | "leave":
                others = tuple(each for each in members if each != word)
                members = (*others, word) if name == "join" else others or members
                world.set.reads(*members)
            case "restart":
                query = Query(make_reader(world, *word.split(), max_items=3), checkpoint)
            case "stop" if query is not None:
                query.reader.stop()
                query = None
            case "trigger":
                query = query or Query(make_reader(world, *members, max_items=3), checkpoint)
                world.sleep(20)
                try:
                    query.trigger(word)
                except failures:
                    query = None
    for queue in world.queues.values():
        queue.is_away = queue.loses_answers = False
        queue.hold_ends()
    Query(make_reader(world, *world.queues, max_items=3), checkpoint).run_available_now()
    return put, checkpoint.data()


def all_released(world: World) -> bool:
    return all(queue.first_id == queue.next_id for queue in world.queues.values() if queue.by_ids)


@given(histories([A, B], step("gap", [A, B], st.sampled_from([3, GAP_IDS])), step("restart", [f"{A} {B}", A])))
@SETTINGS
def test_every_item_is_delivered_once_despite_failures(history: list[Step]) -> None:
    world = World(A, B)
    put, came = check(world, history, ranges, A, B)
    assert sorted(came) == sorted(put)
    assert all_released(world)


@given(histories([A, B, C], step("join", [A, B, C]), step("leave", [A, B, C])))
@SETTINGS
def test_every_item_is_delivered_once_for_any_members(history: list[Step]) -> None:
    world = World(A, B, C)
    put, came = check(world, history, partial(ranges, in_set=True), A)
    assert sorted(came) == sorted(put)
    assert all_released(world)


@given(histories([A, B], step("loses", [A, B]), step("hold ends", [A, B]), step("stop", [""])))
@SETTINGS
def test_no_item_of_open_reads_is_lost(history: list[Step]) -> None:
    world = World(A, B)
    put, came = check(world, history, opens, A, B, failures=(Crash,))
    assert set(came) == set(put)
    assert all(not queue.waiting and not queue.open for queue in world.queues.values())
