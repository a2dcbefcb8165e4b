"""At-least-once delivery: items taken, items delivered again after a failure, and no losses."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.open_reads import MOST_READS
from tests.spark.stream.fakes import A, B, World, numbered, opens
from tests.spark.stream.micro_batches import Checkpoint, Crash, Query, available_now, rows_between

# Batches.


def test_row_has_the_known_facts_of_its_item() -> None:
    world = World(A).put(A, b"x")
    query = Query(opens(world))
    query.trigger()
    nothing = dict.fromkeys(("item_id", "add_time", "expiry_time"))
    assert query.checkpoint.rows() == [{"server": A, "queue": "work", **nothing, "data": b"x"}]


def test_without_items_the_offset_is_unchanged() -> None:
    world = World(A)
    reader = opens(world)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(5)) is start
    other_run = {**start, "run": "another", "batch": 9}
    assert reader.latestOffset(other_run, ReadMaxRows(5)) is other_run


def test_taken_items_are_the_batch_until_it_is_done() -> None:
    world = World(A).put(A, *numbered(0, 3))
    reader = opens(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert reader.latestOffset(start, ReadMaxRows(2)) == end
    rows = rows_between(reader, start, end)
    assert rows == rows_between(reader, start, end)
    assert [row["data"] for row in rows] == numbered(0, 2)


def test_items_of_a_server_are_divided_among_tasks() -> None:
    world = World(A, B).put(A, *numbered(0, 5000)).put(B, *numbered(0, 100))
    reader = opens(world, max_items=20_000)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sorted(len(task.items) for task in reader.partitions(start, end)) == [100, 2500, 2500]


def test_server_with_few_open_reads_per_connection_gets_more_connections() -> None:
    world = World(A)
    world[A].max_open = 2
    world[A].put(*numbered(0, 11))
    query = Query(opens(world))
    assert query.trigger() and not query.trigger()
    assert query.checkpoint.data() == numbered(0, 11)


def test_unconfirmed_open_reads_do_not_delay_others() -> None:
    world = World(A)
    world[A].max_open = 10
    world[A].put(*numbered(0, 10))
    reader = opens(world, max_items=10)
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert world.open_connections == 0, "they count for the connection that took them"


def test_byte_limit_of_a_batch_includes_all_servers() -> None:
    world = World(A, B)
    for address in (A, B):
        world[address].put(*[b"x" * 100] * 200)
    query = Query(opens(world, max_items=1000, max_bytes=4000))
    query.trigger()
    assert len(query.checkpoint.data()) == 40


def test_check_that_finds_nothing_makes_one_request_over_one_connection() -> None:
    world = World(A)
    query = Query(opens(world))
    for _ in range(3):
        query.trigger()
    assert world[A].asked == ["peek"] * 3
    assert world.open_connections == 1


# Finished batches.


def test_finished_items_are_confirmed_once_with_the_next_check() -> None:
    world = World(A).put(A, *numbered(0, MOST_READS + 5))
    query = Query(opens(world, max_items=2 * MOST_READS))
    query.trigger()
    assert len(world[A].open) == MOST_READS + 5
    query.trigger()
    query.trigger()
    assert world[A].open == {}
    assert world[A].asked.count("confirm") == 2, "as many at a time as a request may have"


def test_items_that_returned_before_they_were_done_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    world = World(A).put(A, b"1", b"2")
    query = Query(opens(world))
    query.trigger()
    world[A].hold_ends()
    with caplog.at_level(logging.WARNING, "kestrel.spark"):
        assert query.trigger()
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "a:2229/work: 2 done items were no longer open reads and are delivered again"
    ]
    assert query.checkpoint.data() == [b"1", b"2", b"1", b"2"]


def test_stop_puts_unfinished_items_back() -> None:
    world = World(A, B).put(A, b"1", b"2").put(B, b"3")
    reader = opens(world)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
    reader.stop()
    assert (world[A].waiting, world[B].waiting) == ([b"1", b"2"], [b"3"])
    assert world.open_connections == 0


def test_stop_does_not_wait_for_an_unreachable_server() -> None:
    world = World(A, B).put(A, b"1").put(B, b"2")
    reader = opens(world)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
    world[A].is_away = True
    reader.stop()
    assert (len(world[A].open), world[B].waiting) == (1, [b"2"])
    assert world.now_s == 0


# Failures.


def test_restart_empties_batch_and_returns_items() -> None:
    world = World(A).put(A, b"1", b"2")
    checkpoint = Checkpoint()
    with pytest.raises(Crash):
        Query(opens(world), checkpoint).trigger("read")
    query = Query(opens(world), checkpoint)
    assert query.trigger() and not query.trigger()
    assert checkpoint.data() == []
    world[A].hold_ends()
    assert query.trigger()
    assert checkpoint.data() == [b"1", b"2"]


def test_finished_batch_cannot_be_read_again() -> None:
    world = World(A).put(A, b"1")
    reader = opens(world)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(5))
    reader.latestOffset(end, ReadMaxRows(5))
    with pytest.raises(SourceFailed, match="requested a batch again whose items are already confirmed"):
        reader.partitions(start, end)


def test_unreachable_server_does_not_delay_the_others() -> None:
    world = World(A, B)
    world[A].is_away = True
    world[B].put(b"b")
    query = Query(opens(world))
    assert query.trigger() and not query.trigger()
    assert query.checkpoint.data() == [b"b"]
    assert world.now_s == 0


# Triggers that end.


def test_available_now_ends_where_others_take_items() -> None:
    world = World(A).put(A, *numbered(0, 10))
    query = available_now(opens(world))
    del world[A].waiting[4:]
    assert query.trigger() and not query.trigger()
    assert query.checkpoint.data() == numbered(0, 4)


def test_available_now_fails_without_a_server_and_puts_items_back() -> None:
    world = World(A, B)
    for address in (A, B):
        world[address].put(*numbered(0, 5))
    reader = opens(world)
    reader.prepareForTriggerAvailableNow()
    world[A].is_away = True
    start = reader.initialOffset()
    for _ in range(2):  # either may be the first
        with pytest.raises(SourceFailed, match="a:2229: away"):
            reader.latestOffset(start, ReadMaxRows(50))
    assert world[B].waiting == numbered(0, 5)
    assert world.now_s > 100


def test_trigger_that_never_confirms_is_refused() -> None:
    reader = opens(World(A))
    with pytest.raises(SourceFailed, match=r"use trigger\(availableNow=True\)"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
