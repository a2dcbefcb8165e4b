"""Keys of items as a column, on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import current_timestamp

from kestrel.keyed import join
from kestrel.spark import with_keys
from kestrel.spark.options import SourceFailed

LONG = b"k" * 300


def test_items_with_keys_are_split_and_others_unchanged(spark: SparkSession) -> None:
    whole = join(b"key", b"data")
    items = [whole, join(LONG, b"\xff\x00"), join(b"k", b""), b"", b"text", whole[:7], b"\xc1K1\x00\x00x"]
    numbered = [(bytearray(item), number) for number, item in enumerate(items)]
    table = spark.createDataFrame(numbered, "data BINARY, n INT")
    rows = [tuple(row) for row in with_keys(table).orderBy("n").select("key", "data").collect()]
    assert rows == [
        (b"key", b"data"),
        (LONG, b"\xff\x00"),
        (b"k", b""),
        (None, b""),
        (None, b"text"),
        (None, whole[:7]),
        (None, b"\xc1K1\x00\x00x"),
    ]
    with pytest.raises(SourceFailed, match="there is no binary column data"):
        with_keys(table.selectExpr("cast(data AS STRING) data"))


def test_stream_with_duplicates_keeps_each_key_once(spark: SparkSession, tmp_path: Path) -> None:
    items = [(bytearray(join(b"%d" % (number % 5), b"data")),) for number in range(20)]
    spark.createDataFrame(items, "data BINARY").repartition(3).write.parquet(str(tmp_path / "items"))
    stream = spark.readStream.schema("data BINARY").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "items"))
    keyed = with_keys(stream).where("key IS NOT NULL").withColumn("read_at", current_timestamp())
    once = keyed.withWatermark("read_at", "1 hour").dropDuplicatesWithinWatermark(["key"]).select("key", "data")
    running = (
        once.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(format="parquet", path=str(tmp_path / "once"))
    )
    running.awaitTermination()
    rows = sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "once")).collect())
    assert rows == [(b"%d" % number, b"data") for number in range(5)]
