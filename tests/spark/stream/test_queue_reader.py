"""Both streams of live queues, and the division of limits."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType

from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.queue_reader import FairShares, RoundRobin, backlog
from tests.spark.stream.fakes import A, B, Queue, World, numbered, opens, ranges
from tests.spark.stream.micro_batches import Checkpoint, Query, available_now

EITHER = pytest.mark.parametrize("made", [ranges, opens])


@EITHER
def test_items_of_all_servers_are_read_once_and_in_order(made: Any) -> None:
    world = World(A, B).put(A, *numbered(0, 25)).put(B, *numbered(100, 7))
    query = Query(made(world, max_items=10))
    query.drain()
    assert [each for each in query.checkpoint.data() if len(each) < 3] == numbered(0, 25)
    assert [each for each in query.checkpoint.data() if len(each) == 3] == numbered(100, 7)
    assert all(len(rows) <= 10 for rows in query.checkpoint.sink.values())


@pytest.mark.parametrize(("made", "item_id"), [(ranges, 1), (opens, None)])
def test_columns_can_be_chosen_in_any_order(made: Any, item_id: int | None) -> None:
    world = World(A).put(A, b"x")
    asked = StructType().add("item_id", LongType()).add("server", StringType())
    query = Query(made(world, schema=asked))
    query.trigger()
    assert [list(row.items()) for row in query.checkpoint.rows()] == [[("item_id", item_id), ("server", A)]]


@EITHER
def test_available_now_reads_no_later_items(made: Any) -> None:
    world = World(A, B).put(A, *numbered(0, 23))
    query = available_now(made(world, max_items=10))
    for _ in range(10):
        query.trigger()
        world[A].put(b"later")
        world[B].put(b"later")
    assert query.checkpoint.data() == numbered(0, 23)
    assert world[A].open == {}, "the last batch is confirmed"


@pytest.mark.parametrize(
    ("made", "name", "sentence"),
    [
        (ranges, "reader", r'a stream with option\("reader", "other"\), not "s": use that value, or another'),
        (ranges, "delivery", r'option\("delivery", "other"\), not "exactly_once"'),
        (opens, "delivery", r'option\("delivery", "other"\), not "at_least_once"'),
    ],
)
def test_checkpoint_of_another_stream_is_refused(made: Any, name: str, sentence: str) -> None:
    reader = made(World(A))
    ours = reader.initialOffset()
    theirs = {**ours, name: "other"}
    with pytest.raises(SourceFailed, match=sentence):
        reader.latestOffset(theirs, ReadMaxRows(1))
    for start, end in ((ours, theirs), (theirs, ours)):
        with pytest.raises(SourceFailed, match=sentence):
            reader.partitions(start, end)


# Several queues.


def with_mail() -> World:
    world = World(A, B)
    for address in (A, B):
        world[address].others[b"mail"] = Queue()
        world[address].put(*numbered(0, 5))
        world[address].others[b"mail"].put(*numbered(10, 5))
        world[address].others[b"other"] = Queue()
        world[address].others[b"other"].put(b"none of it")
    return world


@EITHER
@pytest.mark.parametrize("queues", [("work", "mail"), re.compile("w?ork|ma.*")], ids=["list", "pattern"])
def test_several_queues_are_read_in_one_stream(made: Any, queues: Any) -> None:
    world = with_mail()
    query = Query(made(world, queues=queues, max_items=7))
    query.drain()
    came = [(row["server"], row["queue"], row["data"]) for row in query.checkpoint.rows()]
    assert sorted(came) == sorted(
        (address, queue, data)
        for address in (A, B)
        for queue, items in (("work", numbered(0, 5)), ("mail", numbered(10, 5)))
        for data in items
    )
    assert all(len(rows) <= 7 for rows in query.checkpoint.sink.values())


@EITHER
def test_pattern_finds_queues_that_are_made_later(made: Any) -> None:
    world = with_mail()
    query = Query(made(world, A, queues=re.compile("ma.*")))
    query.drain()
    world[A].others[b"map"] = Queue()
    world[A].others[b"map"].put(b"new")
    world[A].others[b"\xff"] = Queue()
    query.drain()
    assert query.checkpoint.data() == [*numbered(10, 5), b"new"]


@EITHER
def test_available_now_reads_the_queues_of_its_beginning(made: Any) -> None:
    world = with_mail()
    query = available_now(made(world, queues=re.compile("ma.*")))
    world[A].others[b"map"] = Queue()
    world[A].others[b"map"].put(b"new")
    query.drain()
    assert sorted(query.checkpoint.data()) == sorted([*numbered(10, 5), *numbered(10, 5)])


def test_unsubscribed_queue_gets_its_releases_and_is_forgotten() -> None:
    world = with_mail()
    checkpoint = Checkpoint()
    Query(ranges(world, A, queues=("work", "mail")), checkpoint).trigger()
    Query(ranges(world, A), checkpoint).trigger()
    assert (world[A].first_id, world[A].others[b"mail"].first_id) == (6, 6)
    assert json.loads(checkpoint.offsets[-1])["queues"] == {f"{A}/work": 6}


# Backlog.


@EITHER
def test_progress_of_a_query_has_the_backlog_after_a_batch(made: Any) -> None:
    world = with_mail()
    reader = made(world, queues=("work", "mail"), max_items=8)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    latest = json.dumps(reader.reportLatestOffset())
    sources = [
        SimpleNamespace(latestOffset=latest),
        SimpleNamespace(latestOffset="7"),
        SimpleNamespace(latestOffset=None),
    ]
    progress: Any = SimpleNamespace(sources=sources)
    assert backlog(progress) == {f"{address}/{queue}": 3 for address in (A, B) for queue in ("work", "mail")}


# Division.


@pytest.mark.parametrize(
    ("amount", "wanted", "given"),
    [
        pytest.param(30, [99, 99, 99], [10, 10, 10], id="those who want much get the same"),
        pytest.param(30, [2, 99, 99], [2, 14, 14], id="what the first does not want is left to those after it"),
        pytest.param(30, [99, 99, 2], [10, 10, 2], id="what the last does not want is left"),
        pytest.param(2, [99, 99, 99], [1, 1, 0], id="no more is given than there is"),
        pytest.param(0, [99], [0], id="of nothing nothing is given"),
        pytest.param(30, [1 << 40, 99, 99], [10, 10, 10], id="who takes more than its share takes nothing of others"),
    ],
)
def test_limit_is_divided_fairly(amount: int, wanted: list[int], given: list[int]) -> None:
    left = FairShares(amount, len(wanted))
    shares = []
    for each in wanted:
        shares.append(min(each, left.next()))
        left.used(each)
    assert shares == given


def test_first_server_rotates_whoever_joins_and_leaves() -> None:
    turns = RoundRobin()
    assert turns.of(("a", "b", "c")) == ["b", "c", "a"]
    assert turns.of(("a", "b", "c")) == ["c", "a", "b"]
    assert turns.of(("a", "b")) == ["b", "a"]
    assert turns.of(("a",)) == ["a"]
    assert turns.of(()) == []
    assert turns.of(("a", "b")) == ["b", "a"]
