"""An archive as a stream of a real Spark: restarts from a checkpoint, single rounds, and a running query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.scroll.handwritten import WRITER, put

PATIENCE_S = 120


class Query:
    """A query that copies the items of an archive to Parquet, with its checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.archive = folder / "archive"
        self.archive.mkdir()

    def came(self, number: int) -> Path:
        path = self.archive / f"archive~work.{number}"
        path.write_bytes(WRITER + put(number, b"a%d" % number) + put(number + 1, b"b%d" % number))
        return path

    def start(self, *, is_round: bool, **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("kestrel").option("index", str(self._folder / "audit.index"))
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load(str(self.archive)).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        writer = writer.trigger(availableNow=True) if is_round else writer.trigger(processingTime="0 seconds")
        return writer.start(str(self._folder / "out"))

    def round(self, **options: str) -> StreamingQuery:
        """Read everything available."""
        query = self.start(is_round=True, **options)
        try:
            assert query.awaitTermination(PATIENCE_S)
        finally:
            query.stop()
        return query

    def items(self) -> list[str]:
        rows = self._spark.read.parquet(str(self._folder / "out")).selectExpr("string(data) AS item").collect()
        return sorted(row.item for row in rows)


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def both(*numbers: int) -> list[str]:
    return sorted(item for number in numbers for item in (f"a{number}", f"b{number}"))


def test_each_round_reads_the_files_since_the_last(query: Query) -> None:
    for number in (10, 20, 30):
        query.came(number)
    done = query.round(maxFiles="2")
    assert [progress.numInputRows for progress in done.recentProgress if progress.numInputRows] == [4, 2]
    assert query.items() == both(10, 20, 30)
    query.came(5)
    query.round(maxFiles="2")
    assert query.items() == both(5, 10, 20, 30)
    query.round()
    assert query.items() == both(5, 10, 20, 30)


def test_running_query_reads_new_files_and_continues_after_an_error(query: Query) -> None:
    query.came(10)
    running = query.start(is_round=False)
    try:
        running.processAllAvailable()
        query.came(5)
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.items() == both(5, 10)
    index = query.archive.parent / "audit.index"
    known = index.read_bytes()
    index.unlink()
    with pytest.raises(StreamingQueryException, match="the checkpoint is not of the index"):
        query.round()
    index.write_bytes(known)
    query.came(7)
    query.round()
    assert query.items() == both(5, 7, 10)
