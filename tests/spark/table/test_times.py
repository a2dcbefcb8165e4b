"""Times of records as timestamps: exact to the millisecond, and limited to the years that all users of Spark have."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.journal.handwritten import add, addx
from tests.scroll.handwritten import WRITER, put
from tests.spark.tables import table
from tests.spark.times import at, collected
from tests.tools.tool_processes import fill

PATIENCE_S = 120
LARGEST_MS = (1 << 63) - 1
TIMES = [1_700_000_000_123, 1, -1, 62_135_596_800_000, 253_370_764_799_999]
LIMITED = [253_370_764_800_001, LARGEST_MS, -62_104_060_800_001, -LARGEST_MS - 1]


@pytest.mark.parametrize("ms", [*TIMES, *LIMITED])
def test_times_beyond_the_limits_become_the_limit(tmp_path: Path, ms: int) -> None:
    fill(tmp_path, {"work": addx(b"a", ms, ms), "ev.1": WRITER + put(1, b"a", ms, ms)})
    for row in table(tmp_path):
        assert (row["add_time"], row["expiry_time"]) == (at(ms), at(ms))


def test_expiry_0_and_a_missing_add_time_are_null(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(addx(b"a", 0, 0) + add(b"old", 7))
    assert [(row["add_time"], row["expiry_time"]) for row in table(tmp_path)] == [(at(0), None), (None, at(7000))]


def test_spark_collects_any_time(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(b"".join(addx(b"a", ms) for ms in [*TIMES, *LIMITED]))
    rows = spark.read.format("kestrel").load(str(tmp_path)).orderBy("offset").collect()
    assert [collected(row)["add_time"] for row in rows] == [at(ms) for ms in [*TIMES, *LIMITED]]


def test_a_watermark_closes_the_windows_of_an_archive(spark: SparkSession, tmp_path: Path, archive: Path) -> None:
    places = {"index": str(tmp_path / "index")}

    def run_once(number: int, *adds_ms: int) -> None:
        items = b"".join(put(number + place, b"a", ms) for place, ms in enumerate(adds_ms))
        (archive / f"archive~work.{number}").write_bytes(WRITER + items)
        files = spark.readStream.format("kestrel").options(**places).load(str(archive))
        counts = files.withWatermark("add_time", "1 minute").groupBy(F.window("add_time", "1 minute")).count()
        writer = counts.select("window.start", "count").writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
        try:
            assert query.awaitTermination(PATIENCE_S)
        finally:
            query.stop()

    run_once(1, 0, 59_999, 60_000)
    assert spark.read.schema("start timestamp").parquet(str(tmp_path / "out")).count() == 0
    run_once(10, 200_000)
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("start").collect()
    assert [(row["start"], row["count"]) for row in rows] == [
        (datetime.fromtimestamp(0), 2),
        (datetime.fromtimestamp(60), 1),
    ]
