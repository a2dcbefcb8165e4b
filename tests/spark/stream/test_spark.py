"""Streams with Spark and servers as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from kestrel.client.blocking import BlockingClient
from tests.server.running import Processes, Server, eventually, own_port

CONFIG = """
maxOpenTransactions = 1000

[[queues]]
name = "work"
"""


class Fleet:
    """Servers that keep their ports when they are started again."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._processes = stack.enter_context(Processes(folder))
        self._ports = [stack.enter_context(own_port()) for _ in range(2)]
        self._running: list[Server] = []

    @property
    def servers(self) -> str:
        """As the option says them."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def start(self, storage: str) -> None:
        """Have all of them serve what is in their folders."""
        self._running = [
            self._processes.serve(
                CONFIG,
                *("--thrift", f"tcp:{port}:interface=127.0.0.1"),
                *("--storage", f"{storage}:{self._folder}/{storage}-{port}"),
            )
            for port in self._ports
        ]

    def stop(self) -> None:
        """An orderly stop of all."""
        for server in self._running:
            server.stop()

    def put(self, *items: bytes) -> None:
        """Put them to the servers in turn."""
        for number, server in enumerate(self._running):
            with BlockingClient(f"127.0.0.1:{server.port}") as client:
                assert client.put_many("work", items[number :: len(self._running)])

    def items(self) -> int:
        """How many wait, in all of them."""
        return self._figure("queue_work_items")

    def open_reads(self) -> int:
        """How many are open."""
        return self._figure("queue_work_open_transactions")

    def _figure(self, name: str) -> int:
        sum_ = 0
        for server in self._running:
            with server.connect() as client:
                sum_ += int(client.stats()[name])
        return sum_


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Two servers, not started."""
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def stream(spark: SparkSession, fleet: Fleet, **options: str) -> DataFrame:
    return (
        spark.readStream.format("kestrel")
        .options(servers=fleet.servers, queue="work", patience="20s", **options)
        .load()
    )


def run(items: DataFrame, folder: Path) -> None:
    """Everything that is there, into files, from where the checkpoint is."""
    query = (
        items.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def written(spark: SparkSession, folder: Path) -> list[bytes]:
    return sorted(bytes(row["data"]) for row in spark.read.parquet(str(folder / "out")).select("data").collect())


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]


def test_items_come_exactly_once_whatever_is_restarted(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("scroll")
    fleet.put(*numbered(0, 200))
    run(stream(spark, fleet, maxRows="150"), tmp_path)
    assert (fleet.items(), fleet.open_reads()) == (0, 0), "what is done is released"
    fleet.put(*numbered(200, 100))
    fleet.stop()
    fleet.start("scroll")
    fleet.put(*numbered(300, 100))
    run(stream(spark, fleet, maxRows="150"), tmp_path)
    run(stream(spark, fleet, maxRows="150"), tmp_path)
    assert written(spark, tmp_path) == numbered(0, 400)
    assert (fleet.items(), fleet.open_reads()) == (0, 0)
    columns = spark.read.parquet(str(tmp_path / "out")).where("item_id > 0 AND add_ms > 0 AND expiry_ms IS NULL")
    assert columns.where("queue = 'work'").groupBy("server").count().count() == 2


def test_items_of_any_queue_come_at_least_once(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("journal")
    fleet.put(*numbered(0, 200))
    run(stream(spark, fleet, delivery="at_least_once", maxRows="150"), tmp_path)
    fleet.put(*numbered(200, 100))
    run(stream(spark, fleet, delivery="at_least_once", maxRows="150"), tmp_path)
    assert written(spark, tmp_path) == numbered(0, 300)
    assert (fleet.items(), fleet.open_reads()) == (0, 0)


def test_a_query_that_is_stopped_gives_back_what_is_not_done(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    fleet.start("journal")
    fleet.put(*numbered(0, 10))
    items = stream(spark, fleet, delivery="at_least_once").writeStream.format("noop")
    query = items.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 hour").start()
    try:
        eventually(lambda: query.lastProgress, "a batch")  # of which nobody says that it is done before the next
        assert (fleet.items(), fleet.open_reads()) == (0, 10)
    finally:
        query.stop()
    eventually(lambda: fleet.items() == 10, "the items are back")


def test_a_queue_without_ids_is_not_read_less_exactly_than_was_asked(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.start("journal")
    fleet.put(*numbered(0, 4))
    with pytest.raises(StreamingQueryException, match=r'is read with option\("delivery", "at_least_once"\)'):
        run(stream(spark, fleet), tmp_path)
    assert fleet.items() == 4
