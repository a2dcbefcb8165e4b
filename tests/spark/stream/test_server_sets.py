"""Streams of servers that join and leave a server set."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from kestrel.client.blocking import BlockingClient
from kestrel.spark.columns import ITEMS
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.options import Delivery, StreamOptions, StreamServers
from kestrel.spark.stream.ranges import RangesReader
from tests.server.running import Processes
from tests.spark.stream import fakes
from tests.spark.stream.fakes import A, B, C, World
from tests.spark.stream.micro_batches import Checkpoint, Crash, Query, available_now, rows_between

ranges = partial(fakes.ranges, in_set=True)
opens = partial(fakes.opens, in_set=True)


# Exactly once.


def test_server_that_left_gets_only_its_last_release() -> None:
    world = World(A, B).put(B, b"1", b"2")
    query = Query(ranges(world, A, B))
    query.trigger()
    world[B].put(b"not read")
    world.set.reads(A)
    world[B].asked.clear()
    for _ in range(3):
        query.trigger()
    assert world[B].first_id == 3
    assert world[B].asked == ["release_range"]


def test_server_that_left_and_is_unreachable_gets_its_release_later() -> None:
    world = World(A, B).put(B, b"1")
    query = Query(ranges(world, A, B))
    query.trigger()
    world.set.reads(A)
    world[B].is_away = True
    world[B].asked.clear()
    for _ in range(5):
        query.trigger()
        world.sleep(100)
    assert len(world[B].asked) == 1 and world[B].first_id == 1
    assert world.now_s == 500, "nobody waits for it"
    world[B].is_away = False
    world.set.reads(A, B)
    query.trigger()
    assert world[B].first_id == 2


def test_departed_server_without_queue_is_ignored_until_return() -> None:
    world = World(A, B).put(B, b"1")
    query = Query(ranges(world, A, B))
    query.trigger()
    world[B].reader = None
    world.set.reads(A)
    world[A].put(b"a")
    assert query.trigger()
    assert query.checkpoint.data() == [b"1", b"a"]
    world.set.reads(A, B)
    with pytest.raises(SourceFailed, match="with another checkpointLocation the stream begins"):
        query.trigger()


def test_batch_of_unreachable_server_is_read_later() -> None:
    world = World(A, B)
    checkpoint = Checkpoint()
    world[A].put(b"a")
    world[B].put(b"b")
    with pytest.raises(Crash):
        Query(ranges(world, A, B), checkpoint).trigger("planned")
    world[B].is_away = True
    with pytest.raises(SourceFailed, match=r"^b:2229: away\. The batch has items of that server: once .* resumes with"):
        Query(ranges(world, A), checkpoint).trigger()
    assert world.now_s > 100, "it was waited for"
    world[B].is_away = False
    assert Query(ranges(world, A, B), checkpoint).trigger()
    assert sorted(checkpoint.data()) == [b"a", b"b"]


def test_batch_of_quiescent_server_is_read_later(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        address = f"127.0.0.1:{processes.serve('', '--storage', 'scroll:queues').port_of('thrift')}"
        servers = StreamServers((address,), patience_s=0)
        reader = RangesReader(StreamOptions(servers, ("work",), Delivery.EXACTLY_ONCE, 100, reader=b"s"), ITEMS)
        with BlockingClient(address, "thrift") as client, ExitStack() as stack:
            stack.callback(reader.stop)
            start = reader.initialOffset()
            client.put("work", b"1")
            end = reader.latestOffset(start, ReadMaxRows(5))
            client.set_status("Quiescent")
            with pytest.raises(SourceFailed, match=f"^{address}: the server is Quiescent. The batch has items of that"):
                rows_between(reader, start, end)
            assert reader.latestOffset(start, ReadMaxRows(5)) == start, "it is one that is away"
            client.set_status("ReadOnly")
            assert [row["data"] for row in rows_between(reader, start, end)] == [b"1"]


@pytest.mark.parametrize("made", [ranges, opens])
def test_available_now_reads_the_members_of_its_beginning(made: Any) -> None:
    world = World(A, B, C)
    for address in (A, B, C):
        world[address].put(*[address.encode()] * 150)
    query = available_now(made(world, A, B))
    world.set.reads(A, C)
    query.drain()
    assert sorted(query.checkpoint.data()) == [A.encode()] * 150 + [B.encode()] * 150


def test_stream_of_an_unknown_set_does_not_begin() -> None:
    world = World(A)
    exactly, least = ranges(world), opens(world)
    world.set.members = None
    for begin in (exactly.initialOffset, exactly.prepareForTriggerAvailableNow, least.prepareForTriggerAvailableNow):
        with pytest.raises(SourceFailed, match="kestrel is not known after"):
            begin()
    with pytest.raises(SourceFailed, match="kestrel is not known after"):
        least.latestOffset(least.initialOffset(), ReadMaxRows(1))


def test_stop_ends_following_and_a_task_does_not_follow() -> None:
    world = World(A)
    for reader in (ranges(world, A), opens(world, A)):
        reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        assert world.set.followers == 1
        pickle.loads(pickle.dumps(reader))
        assert world.set.followers == 1
        reader.stop()
        assert world.set.followers == 0


# At least once.


def test_items_are_taken_from_present_members() -> None:
    world = World(A, B)
    query = Query(opens(world, A))
    for address in (A, B):
        world[address].put(b"1")
    assert query.trigger() and not query.trigger()
    world.set.reads(B)
    world[A].put(b"2")
    assert query.trigger() and not query.trigger()
    assert query.checkpoint.data() == [b"1", b"1"]
    world.set.reads(A, B)
    assert query.trigger()
    assert query.checkpoint.data() == [b"1", b"1", b"2"]


def test_open_reads_of_a_member_that_left_are_confirmed() -> None:
    world = World(A, B).put(B, b"1")
    query = Query(opens(world, A, B))
    query.trigger()
    world.set.reads(A)
    query.trigger()
    assert world[B].open == {} and world[B].waiting == []


def test_stop_puts_back_open_reads_of_departed_member() -> None:
    world = World(A, B).put(B, b"1")
    reader = opens(world, A, B)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
    world.set.reads(A)
    reader.stop()
    assert world[B].waiting == [b"1"]


def test_repeated_batch_is_the_same_for_any_members() -> None:
    world = World(A, B)
    for address in (A, B):
        world[address].put(address.encode())
    first = ranges(world, A, B)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(100))
    rows = rows_between(first, start, end)
    again = ranges(world, B)
    assert rows_between(again, start, end) == rows
    assert [row["data"] for row in rows] == [A.encode(), B.encode()]
