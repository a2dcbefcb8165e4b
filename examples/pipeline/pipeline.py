"""A Spark program that writes page views from a queue to Parquet files, and the counts of each page to another queue.

    spark-submit examples/pipeline/pipeline.py --servers localhost:2229 --folder var/pipeline
    spark-submit --master spark://10.0.0.1:7077 examples/pipeline/pipeline.py --servers mq1,mq2 --folder /shared

A view is JSON, `{"time": "2026-01-31T12:00:00Z", "page": "/buy", "user": "u7"}`. The queue `views` passes each view to
its two children. Each of two queries reads one child by ids, so every view counts exactly once after any crash and
restart. Counts are put into `popular` with a key, which lets the consumer drop duplicates.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

VIEW = "time TIMESTAMP, page STRING, user STRING"

WINDOW = "1 minute"
"""Length of the time window of a count."""

LATEST = "20 seconds"
"""Delay after which late views are no longer counted. The counts of a window are put after this time."""


def views(spark: SparkSession, servers: str, queue: str) -> DataFrame:
    """Return the views of a queue as a stream. An item that is not a view has null in all columns except `raw`."""
    items = spark.readStream.format("kestrel").option("servers", servers).option("subscribe", queue).load()
    raw = F.col("data").cast("string")
    return items.select(raw.alias("raw"), F.from_json(raw, VIEW).alias("view")).select("raw", "view.*")


def archive(spark: SparkSession, servers: str, folder: str) -> StreamingQuery:
    """Start the query that writes all views to Parquet files by day."""
    daily = views(spark, servers, "views+archive").withColumn("day", F.to_date("time"))
    writing = daily.writeStream.queryName("archive").format("parquet").partitionBy("day")
    return writing.option("checkpointLocation", f"{folder}/checkpoints/archive").start(f"{folder}/views")


def count(spark: SparkSession, servers: str, folder: str) -> StreamingQuery:
    """Start the query that puts the counts of each page and window into `popular`, when the window is over."""
    known = views(spark, servers, "views+count").where("page IS NOT NULL AND time IS NOT NULL")
    window = F.window("time", WINDOW)
    counted = known.withWatermark("time", LATEST).groupBy(window.alias("window"), "page").count()
    begin = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    rows = counted.select(
        F.concat_ws(" ", begin, "page").alias("key"),
        F.to_json(F.struct(begin.alias("from"), "page", F.col("count").alias("views"))).alias("data"),
    )
    writing = rows.writeStream.queryName("count").format("kestrel").outputMode("append")
    writing = writing.option("servers", servers).option("queue", "popular").option("keys", "true")
    return writing.option("checkpointLocation", f"{folder}/checkpoints/count").start()


def main() -> int:
    """Run both queries until one fails or Ctrl-C stops them. Return the exit status."""
    parser = argparse.ArgumentParser(description="Archive and count page views.")
    parser.add_argument("--servers", default="localhost:2229", help="thrift ports, comma-separated (localhost:2229)")
    parser.add_argument("--folder", default="var/pipeline", help="folder that all workers can reach")
    arguments = parser.parse_args()
    folder = arguments.folder if "://" in arguments.folder else str(Path(arguments.folder).absolute())
    spark = SparkSession.builder.appName("views").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    queries = [archive(spark, arguments.servers, folder), count(spark, arguments.servers, folder)]
    print(f"{len(queries)} queries run; Ctrl-C ends them, and the next start resumes them", flush=True)
    try:
        spark.streams.awaitAnyTermination()
    except KeyboardInterrupt:
        for query in queries:
            query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
