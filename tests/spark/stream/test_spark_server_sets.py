"""Streams of a server set, with a real Spark, ZooKeeper and servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kestrel.address import parse_address
from kestrel.cluster.member import Member
from tests.cluster.zookeeper import ZooKeeper, running_zookeeper
from tests.server.running import eventually
from tests.spark.stream.live import Fleet, numbered, stream, written


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Return two running servers that are in no set."""
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack)
        fleet.start("scroll")
        yield fleet


def join(zookeeper: ZooKeeper, path: str, thrift: str) -> str:
    address = parse_address(thrift, 0)
    data = Member(address, {"thrift": address}).to_json()
    node: str = zookeeper.client.create(f"{path}/member_", data, sequence=True, makepath=True)
    return node


def test_query_follows_the_members_and_items_are_delivered_once(
    spark: SparkSession, fleet: Fleet, zookeeper: ZooKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = fleet.addresses
    left = join(zookeeper, "/followed/read", first)
    fleet.put(*numbered(0, 40))
    items = stream(spark, fleet, servers=f"zk://me:sesame@{zookeeper.hosts}/followed")
    items.explain(True)
    plan = capsys.readouterr().out
    assert "sesame" not in plan and f"(redacted)@{zookeeper.hosts}" in plan, "Spark shows options"
    writing = items.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writing.trigger(processingTime="100 milliseconds").start(str(tmp_path / "out"))
    try:
        eventually(lambda: fleet.items_of_each() == [0, 20], "who is in the set is read")
        join(zookeeper, "/followed/read", second)
        eventually(lambda: fleet.items() == 0, "who has come is read too")
        zookeeper.client.delete(left)
        fleet.put(*numbered(40, 40))
        eventually(lambda: fleet.items_of_each()[1] == 0, "who is left is read")
        join(zookeeper, "/followed/read", first)
        eventually(lambda: fleet.items() == 0, "who is back is read")
    finally:
        query.stop()
    assert written(spark, tmp_path) == numbered(0, 80)


def test_rows_are_put_to_present_members(spark: SparkSession, fleet: Fleet, zookeeper: ZooKeeper) -> None:
    rows = spark.range(100).selectExpr("cast(id AS STRING) data").write.format("kestrel").mode("append")
    to = rows.option("servers", f"zk://{zookeeper.hosts}/put").option("queue", "work").option("patience", "20s")
    first, second = fleet.addresses
    left = join(zookeeper, "/put/write", first)
    fleet.put(b"x", b"x")
    to.save()
    assert fleet.items_of_each() == [101, 1]
    zookeeper.client.delete(left)
    join(zookeeper, "/put/write", second)
    to.save()
    assert fleet.items_of_each() == [101, 101]
