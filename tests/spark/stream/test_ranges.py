"""Exactly-once delivery: offsets, batches, and their recovery after failures."""

from __future__ import annotations

import logging
import math
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.queue_reader import Offset, Place
from kestrel.spark.stream.ranges import GAP_IDS, PAGE_BYTES, IdSlice, slices_of
from tests.spark.stream.fakes import QUEUE, A, B, C, Queue, World, numbered, ranges
from tests.spark.stream.micro_batches import Checkpoint, Crash, Query, available_now, rows_between


def offset(**ids: int) -> Offset:
    queues = {f"{name}:2229/{QUEUE.decode()}": id_ for name, id_ in ids.items()}
    return {"delivery": "exactly_once", "reader": "s", "queues": queues}


BEHIND = GAP_IDS + 10 - 7500
"""The beginning of the second of four slices of 10000 ids behind a gap."""


def time_of(time_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)


def spans(tasks: list[InputPartition]) -> list[tuple[int, int]]:
    return [(task.first_id, task.end_id) for task in tasks if isinstance(task, IdSlice)]


# Batches.


def test_stream_begins_with_the_first_unreleased_item() -> None:
    world = World(A, B).put(A, b"1", b"2")
    world[A].first_id = 2
    assert ranges(world).initialOffset() == offset(a=2, b=1)
    assert [world[each].reader for each in (A, B)] == [b"s", b"s"], "from now on they keep what there is"


def test_row_has_the_server_and_times_of_its_item() -> None:
    world = World(A).put(A, b"x", gap=6)
    query = Query(ranges(world))
    query.trigger()
    row = {"server": A, "queue": "work", "item_id": 7, "add_time": time_of(1007), "expiry_time": None, "data": b"x"}
    assert query.checkpoint.rows() == [row]


def test_times_are_utc_and_capped_at_year_9999() -> None:
    world = World(A).put(A, b"1", b"2")
    world[A].times_ms = {1: (1_700_000_000_123, 1_700_000_060_000), 2: (0, 1 << 62)}
    query = Query(ranges(world))
    query.trigger()
    assert [(row["add_time"], row["expiry_time"]) for row in query.checkpoint.rows()] == [
        (time_of(1_700_000_000_123), time_of(1_700_000_060_000)),
        (time_of(0), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
    ]


def test_without_new_items_the_offset_is_unchanged() -> None:
    world = World(A, B)
    reader = ranges(world)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(5)) is start
    world[B].put(b"x")
    end = reader.latestOffset(start, ReadMaxRows(5))
    assert end == reader.latestOffset(start, ReadMaxRows(5))
    assert end == {**offset(a=1, b=2), "new": start["queues"]}, "the first batch says where it begins"
    assert reader.latestOffset(end, ReadMaxRows(5)) is end


def test_batch_without_its_own_end_has_no_tasks() -> None:
    world = World(A)
    assert ranges(world).partitions(offset(a=5), offset(a=5)) == []


# Limits of rows.


def test_unused_rows_of_one_server_go_to_others() -> None:
    world = World(A, B, C).put(A, b"x").put(B, *numbered(0, 100))
    reader = ranges(world)
    start = reader.initialOffset()
    ends = [reader.latestOffset(start, ReadMaxRows(30))["queues"][f"{B}/work"] for _ in range(3)]
    assert [end - 1 for end in ends] == [29, 29, 29]


def test_available_now_may_exceed_the_limit() -> None:
    world = World(A, B)
    for address in (A, B):
        world[address].put(*numbered(0, 50), gap=GAP_IDS)
    reader = ranges(world, max_items=10)
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["queues"] == offset(a=GAP_IDS + 51, b=GAP_IDS + 51)["queues"]


@pytest.mark.parametrize(
    ("first", "end", "spans_"),
    [
        (1, 2, [(1, 2)]),
        (1, 2000, [(1, 2000)]),
        (1, 4001, [(1, 2001), (2001, 4001)]),
        (10, 100_010, [(10, 25_010), (25_010, 50_010), (50_010, 75_010), (75_010, 100_010)]),
        (10, GAP_IDS + 10, [(10, BEHIND), *((BEHIND + 2500 * n, BEHIND + 2500 * (n + 1)) for n in range(3))]),
    ],
    ids=["one", "few", "two", "many", "gap"],
)
def test_range_is_divided_where_its_items_are(first: int, end: int, spans_: list[tuple[int, int]]) -> None:
    assert spans(list(slices_of(Place(A, "work"), first, end, 4, 10_000))) == spans_


def test_slice_is_read_in_pages() -> None:
    world = World(A)
    items = [bytes([number]) * (PAGE_BYTES // 2) for number in range(5)]
    world[A].put(*items)
    query = Query(ranges(world))
    query.trigger()
    assert query.checkpoint.data() == items
    assert world[A].asked.count("read_range") == 3


# Finished batches.


def test_finished_items_are_released_once_with_the_next_check() -> None:
    world = World(A).put(A, b"1", b"2")
    query = Query(ranges(world))
    assert query.trigger()
    assert world[A].first_id == 1, "Spark may ask for them again"
    assert not query.trigger() and not query.trigger()
    assert world[A].first_id == 3
    assert world[A].asked.count("release_range") == 1


def test_stop_disconnects_and_keeps_the_items() -> None:
    world = World(A, B)
    reader = ranges(world)
    reader.initialOffset()
    assert world.open_connections == 2
    reader.stop()
    assert world.open_connections == 0
    assert world[A].reader == b"s"


def test_task_of_released_items_fails_with_the_servers_reason() -> None:
    world = World(A).put(A, b"1")
    world[A].reader = b"s"
    world[A].first_id = 2
    with pytest.raises(SourceFailed, match="a:2229: the ids from 1 on were released"):
        rows_between(ranges(world), offset(a=1), offset(a=2))


def test_task_waits_for_an_unreachable_server_and_then_fails() -> None:
    world = World(A)
    world[A].reader = b"s"
    world[A].is_away = True
    with pytest.raises(SourceFailed, match="a:2229: away"):
        rows_between(ranges(world), offset(a=1), offset(a=2))
    assert world.now_s > 100


def test_checkpoint_older_than_the_released_items_is_refused() -> None:
    world = World(A).put(A, b"1", b"2")
    world[A].reader = b"s"
    world[A].first_id = 3
    with pytest.raises(SourceFailed, match=r"a:2229: the ids from 1 on .* one stream with one checkpoint"):
        ranges(world).latestOffset(offset(a=1), ReadMaxRows(5))


# Unreachable servers.


def test_unreachable_server_keeps_its_offset_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    world = World(A, B)
    query = Query(ranges(world))
    world[A].put(b"a1")
    world[B].put(b"b1")
    query.trigger()
    world[A].put(b"a2")
    world[B].put(b"b2")
    world[A].is_away = True
    with caplog.at_level(logging.WARNING, "kestrel.spark"):
        assert query.trigger()
    assert sorted(query.checkpoint.data()) == [b"a1", b"b1", b"b2"]
    assert [record.message.partition(";")[0] for record in caplog.records] == ["a:2229: away"]
    world[A].is_away = False
    world.sleep(60)
    assert query.trigger() and not query.trigger()
    assert sorted(query.checkpoint.data()) == [b"a1", b"a2", b"b1", b"b2"]
    assert (world[A].first_id, world[B].first_id) == (3, 3)


def test_unreachable_server_is_not_asked_at_every_trigger() -> None:
    world = World(A, B)
    query = Query(ranges(world))
    query.trigger()
    world[A].is_away = True
    world[A].asked.clear()
    for _ in range(600):
        query.trigger()
        world.sleep(1)
    assert 5 < len(world[A].asked) < 30


def test_stream_does_not_begin_without_a_server() -> None:
    world = World(A, B)
    world[B].is_away = True
    with pytest.raises(SourceFailed, match="b:2229: away"):
        ranges(world).initialOffset()
    assert world.now_s > 100, "it was waited for"


# Triggers that end.


def test_available_now_waits_for_a_server_and_then_fails() -> None:
    world = World(A, B).put(B, b"x")
    query = available_now(ranges(world))
    query.reader.initialOffset()
    world[B].is_away = True
    with pytest.raises(SourceFailed, match="b:2229: away"):
        query.trigger()
    assert world.now_s > 100


def test_available_now_does_not_end_with_unconfirmed_batches() -> None:
    world = World(A).put(A, b"x")
    query = available_now(ranges(world))
    query.trigger()
    world[A].is_away = True
    with pytest.raises(SourceFailed, match="a:2229: away"):
        query.trigger()
    world[A].is_away = False
    Query(ranges(world), query.checkpoint).run_available_now()
    assert world[A].first_id == 2
    assert query.checkpoint.data() == [b"x"]


# Changed lists of servers.


def test_server_that_is_added_later_and_empty_makes_no_batches() -> None:
    world = World(A, B)
    checkpoint = Checkpoint()
    world[A].put(b"a")
    Query(ranges(world, A), checkpoint).trigger()
    query = Query(ranges(world, A, B), checkpoint)
    assert not query.trigger()
    world[B].put(b"b")
    assert query.trigger()
    assert checkpoint.data() == [b"a", b"b"]


def test_removed_unreachable_server_is_omitted_with_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(A, B)
    checkpoint = Checkpoint()
    world[B].put(b"b")
    Query(ranges(world), checkpoint).trigger()
    world[B].is_away = True
    query = Query(ranges(world, A), checkpoint)
    with caplog.at_level(logging.WARNING, "kestrel.spark"):
        for item in (b"a1", b"a2"):
            world[A].put(item)
            query.trigger()
    assert [record.message for record in caplog.records] == [
        "b:2229: away; the options no longer name b:2229/work, but it still keeps items that were read: "
        "name it again, or release the items of the reader 's' up to id 2"
    ]
    world[B].is_away = False
    Query(ranges(world), checkpoint).run_available_now()
    assert checkpoint.data() == [b"b", b"a1", b"a2"]
    assert world[B].first_id == 2, "named again it goes on"


def test_batch_of_a_removed_server_fails_with_the_reason() -> None:
    world = World(A, B)
    with pytest.raises(SourceFailed, match="a batch has items of b:2229/work, which the options do not name: name it"):
        ranges(world, A).partitions(offset(a=1, b=1), offset(a=1, b=2))


def test_queue_without_ids_is_refused_with_the_way_out() -> None:
    world = World(A)
    world[A].has_ids = False
    sentence = r'a:2229: its storage gives them none\. Read a queue .* option\("delivery", "at_least_once"\)'
    with pytest.raises(SourceFailed, match=sentence):
        Query(ranges(world)).trigger()
    with pytest.raises(SourceFailed, match=sentence):
        Query(ranges(world)).run_available_now()


def test_recreated_queue_is_distinguished_from_deleted_one() -> None:
    world = World(A).put(A, b"1", b"2")
    checkpoint = Checkpoint()
    Query(ranges(world), checkpoint).run_available_now()
    world.queues[A] = Queue()
    world[A].put(b"3", b"4", b"5")
    for run in (Query(ranges(world), checkpoint).trigger, Query(ranges(world), checkpoint).run_available_now):
        with pytest.raises(SourceFailed, match="with another checkpointLocation the stream begins"):
            run()
    assert (world[A].first_id, world[A].reader) == (1, None), "nothing was released that was not read"


# The beginning of a new stream.

CHILD = "work+spark"


def with_child(*items: bytes) -> World:
    world = World(A)
    world[A].others[CHILD.encode()] = child = Queue()
    child.put(*items)
    return world


@pytest.mark.parametrize(
    ("start_ms", "begins"),
    [(0, 1), (1, 1), (1003, 3), (1003.5, 4), (1004, 4), (1007, 12), (1011, 12), (1012, 12), (2000, 13), (math.inf, 13)],
)
def test_new_stream_of_a_child_begins_at_a_time(start_ms: float, begins: int) -> None:
    world = with_child(*numbered(1, 5))
    child = world[A].others[CHILD.encode()]
    child.put(b"12", gap=6)
    start = ranges(world, queues=(CHILD,), start_ms=start_ms).initialOffset()
    assert start["queues"] == {f"{A}/{CHILD}": begins} or items_between(child, start, begins) == 0


def items_between(queue: Queue, start: Offset, id_: int) -> int:
    first, end = sorted((start["queues"][f"{A}/{CHILD}"], id_))
    return sum(first <= each < end for each in queue.by_ids)


def test_stream_begins_at_the_latest_item_once() -> None:
    world = with_child(b"before")
    child = world[A].others[CHILD.encode()]
    checkpoint = Checkpoint()
    latest = partial(ranges, world, queues=(CHILD,), start_ms=math.inf)
    Query(latest(), checkpoint).trigger()
    child.put(b"1", b"2")
    with pytest.raises(Crash):
        Query(latest(), checkpoint).trigger("planned")
    child.put(b"3")
    Query(latest(), checkpoint).drain()
    assert checkpoint.data() == [b"1", b"2", b"3"]
    assert child.first_id == 5


def test_items_of_other_readers_are_not_skipped() -> None:
    sentence = r"a:2229/work: startingOffsets .* Read a child such as work\+spark, or flush the queue .* by add_time"
    for start_ms in (1000, math.inf):
        world = World(A)
        world[A].put(b"x")
        with pytest.raises(SourceFailed, match=sentence):
            ranges(world, start_ms=start_ms).initialOffset()
        assert world[A].first_id == 1


# Lost items.


def test_recreated_queue_is_read_without_fail_on_data_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(A, B).put(A, b"1", b"2").put(B, b"b")
    checkpoint = Checkpoint()
    Query(ranges(world), checkpoint).run_available_now()
    world.queues[A] = Queue()
    world[A].put(b"3")
    with caplog.at_level(logging.WARNING, "kestrel.spark"):
        query = Query(ranges(world, fails_on_data_loss=False), checkpoint)
        query.drain()
    assert sorted(checkpoint.data()) == [b"1", b"2", b"3", b"b"]
    assert world[A].first_id == 2
    assert "The stream continues with the item 1 (failOnDataLoss)" in caplog.text


def test_without_fail_on_data_loss_released_items_are_skipped() -> None:
    world = World(A).put(A, *numbered(0, 6))
    checkpoint = Checkpoint()
    Query(ranges(world, max_items=2), checkpoint).trigger()
    world[A].first_id = 5
    with pytest.raises(SourceFailed, match=r'from 3 on were released\. .*\("failOnDataLoss", "false"\)'):
        Query(ranges(world, max_items=2), checkpoint).trigger()
    Query(ranges(world, max_items=2, fails_on_data_loss=False), checkpoint).drain()
    assert checkpoint.data() == [b"0", b"1", b"4", b"5"]


def test_task_reads_remaining_items_without_fail_on_data_loss() -> None:
    world = World(A).put(A, *numbered(0, 4))
    world[A].reader = b"s"
    world[A].first_id = 3
    lenient = ranges(world, fails_on_data_loss=False)
    assert [row["data"] for row in rows_between(lenient, offset(a=1), offset(a=5))] == [b"2", b"3"]
    world[A].first_id = 5
    assert rows_between(lenient, offset(a=1), offset(a=5)) == []


def test_queue_of_another_reader_fails_without_fail_on_data_loss() -> None:
    world = World(A).put(A, b"x")
    world[A].reader = b"another"
    with pytest.raises(SourceFailed, match="read by another reader"):
        ranges(world, fails_on_data_loss=False).latestOffset(offset(a=1), ReadMaxRows(5))


# Checkpoints of release 1.0.


def test_checkpoint_of_release_1_0_continues() -> None:
    world = World(A, B).put(A, *numbered(0, 4)).put(B, *numbered(4, 4))
    old = {"delivery": "exactly_once", "queue": "work", "reader": "s", "servers": {A: 3}}
    planned = {**old, "servers": {A: 4, B: 2}, "new": {B: 1}}
    reader = ranges(world)
    reader.initialOffset()
    assert sorted(row["data"] for row in rows_between(reader, old, planned)) == [b"2", b"4"]
    assert reader.latestOffset(planned, ReadMaxRows(100)) == offset(a=5, b=5)
    assert (world[A].first_id, world[B].first_id) == (4, 2)


# Bytes.


def test_batch_has_about_the_limit_of_bytes() -> None:
    world = World(A, B).put(A, *[b"x" * 100] * 50).put(B, *[b"y" * 10] * 50)
    query = Query(ranges(world, max_bytes=2000))
    query.trigger()
    data = query.checkpoint.data()
    assert (data.count(b"x" * 100), data.count(b"y" * 10)) == (15, 50)
