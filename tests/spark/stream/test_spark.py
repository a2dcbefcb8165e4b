"""Streams with a real Spark and real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kestrel.spark import backlog
from tests.server.running import eventually
from tests.spark.stream.live import Fleet, numbered, run, stream, written


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Two servers, not started."""
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def test_items_are_delivered_exactly_once_over_all_restarts(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("scroll")
    fleet.put(*numbered(0, 200))
    run(stream(spark, fleet, maxOffsetsPerTrigger="150"), tmp_path)
    assert (fleet.items(), fleet.open_reads()) == (0, 0), "what is done is released"
    fleet.put(*numbered(200, 100))
    fleet.stop()
    fleet.start("scroll")
    fleet.put(*numbered(300, 100))
    run(stream(spark, fleet, maxOffsetsPerTrigger="150"), tmp_path)
    run(stream(spark, fleet, maxOffsetsPerTrigger="150"), tmp_path)
    assert written(spark, tmp_path) == numbered(0, 400)
    assert (fleet.items(), fleet.open_reads()) == (0, 0)
    columns = spark.read.parquet(str(tmp_path / "out")).where(
        "item_id > 0 AND add_time > now() - INTERVAL 1 DAY AND expiry_time IS NULL"
    )
    assert columns.where("queue = 'work'").groupBy("server").count().count() == 2


def test_items_of_any_queue_are_delivered_at_least_once(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("journal")
    fleet.put(*numbered(0, 200))
    run(stream(spark, fleet, delivery="at_least_once", maxOffsetsPerTrigger="150"), tmp_path)
    fleet.put(*numbered(200, 100))
    run(stream(spark, fleet, delivery="at_least_once", maxOffsetsPerTrigger="150"), tmp_path)
    assert written(spark, tmp_path) == numbered(0, 300)
    assert (fleet.items(), fleet.open_reads()) == (0, 0)


def test_stopped_query_puts_unfinished_items_back(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("journal")
    fleet.put(*numbered(0, 10))
    items = stream(spark, fleet, delivery="at_least_once").writeStream.format("noop")
    query = items.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 hour").start()
    try:
        eventually(lambda: query.lastProgress, "a batch")  # the batch is not finished before the next
        assert (fleet.items(), fleet.open_reads()) == (0, 10)
    finally:
        query.stop()
    eventually(lambda: fleet.items() == 10, "the items are back")


def test_queue_without_ids_is_refused_for_exactly_once(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.start("journal")
    fleet.put(*numbered(0, 4))
    with pytest.raises(StreamingQueryException, match=r'have no ids with option\("delivery", "at_least_once"\)'):
        run(stream(spark, fleet), tmp_path)
    assert fleet.items() == 4


@pytest.mark.parametrize(("delivery", "storage"), [("exactly_once", "scroll"), ("at_least_once", "journal")])
def test_several_queues_are_read_in_one_stream_with_their_backlog(
    spark: SparkSession, fleet: Fleet, tmp_path: Path, delivery: str, storage: str
) -> None:
    fleet.start(storage)
    fleet.put(*numbered(0, 40))
    fleet.put(*numbered(40, 40), queue="mail")
    fleet.put(*numbered(80, 4), queue="other")
    items = stream(spark, fleet, delivery=delivery, subscribePattern="work|mail", maxOffsetsPerTrigger="40")
    query = items.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.trigger(availableNow=True).start(str(tmp_path / "out"))
    running.awaitTermination()
    assert written(spark, tmp_path) == numbered(0, 80)
    by_queue = spark.read.parquet(str(tmp_path / "out")).groupBy("queue").count().collect()
    assert {row["queue"]: row["count"] for row in by_queue} == {"work": 40, "mail": 40}
    left = [sum(backlog(progress).values()) for progress in running.recentProgress if progress.numInputRows]
    assert left == [40, 0]
