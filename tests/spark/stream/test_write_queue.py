"""``df.write.format("kestrel")`` and ``df.writeStream.format("kestrel")`` on a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kestrel.keyed import split
from tests.server.running import ANY_PORT, Processes, Server
from tests.spark.stream.live import address_of, taken

CONFIG = """
queuePath = "queues"
[[queues]]
name = "small"
maxItems = 3
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    with Processes(tmp_path) as processes:
        one = processes.serve(CONFIG, "--thrift", ANY_PORT)
        (tmp_path / "other").mkdir()
        with Processes(tmp_path / "other") as others:
            yield [one, others.serve(CONFIG, "--thrift", ANY_PORT)]


def write(table: DataFrame, servers: list[Server], mode: str = "append", queue: str = "work", **options: str) -> None:
    writer = table.write.format("kestrel").mode(mode).options(**options)
    writer.option("servers", ",".join(map(address_of, servers))).option("queue", queue).save()


def test_table_is_put_to_a_queue_of_several_servers(spark: SparkSession, servers: list[Server]) -> None:
    table = spark.range(3000).selectExpr("cast(id AS STRING) data", "IF(id % 2 = 0, 3600000L, NULL) expires_in_ms")
    write(table, servers)
    items = [taken(server) for server in servers]
    assert all(items) and sorted(map(int, [*items[0], *items[1]])) == list(range(3000))


def test_unsuitable_table_is_reported_in_a_sentence(spark: SparkSession, servers: list[Server]) -> None:
    table = spark.range(10).selectExpr("cast(id AS STRING) data")
    with pytest.raises(PySparkException, match=r'a queue cannot be overwritten: write with mode\("append"\)'):
        write(table, servers, mode="overwrite")
    with pytest.raises(PySparkException, match=r"the queue small is full on .*: \d of the \d+ items that this task"):
        write(table.repartition(1), servers, queue="small", patience="0")
    assert sum(len(taken(server, "small")) for server in servers) == 6


def test_stream_put_continues_after_checkpoint(
    spark: SparkSession, servers: list[Server], tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()

    def run() -> list[tuple[bytes, bytes]]:
        stream = spark.readStream.text(str(lines)).selectExpr("value AS key", "value AS data")
        writer = stream.writeStream.format("kestrel").queryName("lines").trigger(availableNow=True)
        options = {"checkpointLocation": str(tmp_path / "checkpoint"), "queue": "work", "keys": "true"}
        writer.options(**options).option("servers", address_of(servers[0])).start().awaitTermination()
        return sorted(split(item) for item in taken(servers[0]))

    (lines / "1.txt").write_text("a\nb\n")
    assert run() == [(b"a", b"a"), (b"b", b"b")]
    (lines / "2.txt").write_text("c\n")
    assert run() == [(b"c", b"c")]
