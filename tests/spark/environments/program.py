"""A Spark program that uses each part of kestrel once: ``program.py FOLDER``. It prints each result as a line of JSON.

It imports nothing of the tests, because a cluster has only the package.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession


def count_records(spark: SparkSession, folder: Path) -> dict[str, int]:
    records = spark.read.format("kestrel").option("payload", "false").load(f"{folder}/data/*/spool")
    return {row.op: row["count"] for row in records.groupBy("op").count().collect()}


def count_states(spark: SparkSession, folder: Path) -> dict[str, int]:
    from kestrel.spark import histories

    items = histories(spark.read.format("kestrel").load(f"{folder}/data/*/spool"))
    return {row.state: row["count"] for row in items.groupBy("state").count().collect()}


def query_views(spark: SparkSession, folder: Path) -> dict[str, int]:
    from kestrel.spark import views

    views(spark, f"{folder}/data/*/spool", now_ms=1_700_000_000_000)
    rows = spark.sql("SELECT server, items_added FROM queues WHERE scope = 'server'").collect()
    return {row.server: row.items_added for row in rows}


def verify_fleet(spark: SparkSession, folder: Path) -> dict[str, int]:
    from kestrel.spark.fleet.verify import verify

    rows = verify(spark, [f"{folder}/data/*/spool"]).where("state IS NOT NULL").groupBy("state").count().collect()
    return {row.state: row["count"] for row in rows}


def write_batch(batch: DataFrame, batch_id: int, out: str) -> None:
    """Write a batch to a folder of its number, and fail after the first write, as a driver that dies before its commit.

    A repeated batch replaces what the failed attempt wrote, so each item is written exactly once.
    """
    batch.write.mode("overwrite").parquet(f"{out}/batch={batch_id}")
    mark = f"{out}-has-failed"
    if not os.path.exists(mark):
        os.mkdir(mark)
        raise RuntimeError("the driver dies before the batch is committed")


def copy_stream(spark: SparkSession, folder: Path) -> dict[str, int]:
    """Copy an archive to Parquet with `foreachBatch`, in two attempts."""
    out = f"{folder}/out"
    reader = spark.readStream.format("kestrel").option("index", f"{folder}/index").option("maxFiles", "1")
    writer = reader.load(f"{folder}/archive").writeStream.foreachBatch(partial(write_batch, out=out))
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    failures = 0
    for _ in range(2):
        try:
            writer.start().awaitTermination()
        except StreamingQueryException:
            failures += 1
    items = spark.read.parquet(out)
    return {"failures": failures, "rows": items.count(), "distinct": items.select("item_id").distinct().count()}


STEPS: Final[Mapping[str, Callable[[SparkSession, Path], dict[str, int]]]] = {
    "records": count_records,
    "histories": count_states,
    "views": query_views,
    "fleet": verify_fleet,
    "stream": copy_stream,
}


def results(spark: SparkSession, folder: Path) -> Iterator[tuple[str, object]]:
    """Run all steps. Return the name of each with its result or its error, as soon as it is known."""
    for name, step in STEPS.items():
        try:
            yield name, step(spark, folder)
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def main(folder: Path) -> None:
    """Run all steps in a new session. Print the version of Spark and the results."""
    spark = SparkSession.builder.appName("environment").getOrCreate()
    if "KESTREL_REGISTER" in os.environ:  # a package from --py-files is not found by its name
        from kestrel.spark.source import KestrelSource

        spark.dataSource.register(KestrelSource)
    print(json.dumps({"spark": spark.version}), flush=True)
    for name, result in results(spark, folder):
        print(json.dumps({name: result}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
