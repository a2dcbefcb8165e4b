"""``spark.read.format("kestrel")``, found without a registration, and read by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kestrel.disk.reader import PART_BYTES
from tests.journal.handwritten import addx, open_
from tests.scroll.handwritten import READER, WRITER, put, targets
from tests.tools.tool_processes import fill


def test_folder_of_journals_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(addx(b"hello") + open_(7) + addx(b"you"))
    table = spark.read.format("kestrel").load(str(tmp_path))
    rows = table.select("server", "queue", "offset", "op", "xid", "data_bytes", "data").collect()
    assert [tuple(row) for row in rows] == [
        (str(tmp_path), "work", 0, "ADDX", None, 5, b"hello"),
        (str(tmp_path), "work", 26, "REMOVE_TENTATIVE_XID", 7, None, None),
        (str(tmp_path), "work", 31, "ADDX", None, 3, b"you"),
    ]


def test_several_tasks_read_pattern_and_large_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    for server in ("s1", "s2"):
        (tmp_path / server / "spool").mkdir(parents=True)
    (tmp_path / "s1" / "spool" / "work").write_bytes(addx(b"x" * 1003) * 3 * (PART_BYTES // 1024))
    fill(tmp_path / "s2" / "spool", {"ev.1": WRITER + targets(0, b"c") + put(1, b"yes"), "ev.read.c": READER})
    load = spark.read.format("kestrel").option("partitionBytes", "1MiB").schema("server STRING, item_id BIGINT")
    table = load.load([str(tmp_path / "s1" / "spool"), str(tmp_path / "*" / "spool")])
    assert table.rdd.getNumPartitions() >= 3
    counts = {row["server"]: row["count"] for row in table.groupBy("server").count().collect()}
    assert counts == {str(tmp_path / "s1" / "spool"): 3 * (PART_BYTES // 1024), "s2": 2}
    assert [row["item_id"] for row in table.filter("item_id IS NOT NULL").collect()] == [1]


def test_problems_are_a_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(addx(b"hello") + addx(b"you")[:-1])
    load = spark.read.format("kestrel")
    assert load.load(str(tmp_path)).count() == 1
    [problem] = load.option("view", "errors").load(str(tmp_path)).collect()
    assert (problem["queue"], problem["kind"], problem["offset"]) == ("work", "unfinished", 26)
    with pytest.raises(PySparkException, match="unfinished: the last record is cut short"):
        spark.read.format("kestrel").option("mode", "FAILFAST").load(str(tmp_path)).count()
    with pytest.raises(PySparkException, match="there is no option pajload; did you mean payload"):
        spark.read.format("kestrel").option("pajload", "false").load(str(tmp_path))


def test_pushed_filters_find_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path, {"work": addx(b"hello") + open_(7) + addx(b"you", 9), "other": addx(b"x", 9)})
    setting = "spark.sql.python.filterPushdown.enabled"
    wanted = "queue = 'work' AND op = 'ADDX' AND add_time > timestamp_millis(5) AND xid IS NULL"
    taken_over = spark.read.format("kestrel").option("filterPushdown", "true").load(str(tmp_path)).filter(wanted)
    expected = [row["data"] for row in taken_over.collect()]
    spark.conf.unset(setting)
    try:
        with pytest.raises(PySparkException):
            spark.read.format("kestrel").option("filterPushdown", "true").load(str(tmp_path)).filter(wanted).collect()
        plain = spark.read.format("kestrel").load(str(tmp_path)).filter(wanted)
        assert [row["data"] for row in plain.collect()] == expected == [b"you"]
    finally:
        spark.conf.set(setting, "true")
