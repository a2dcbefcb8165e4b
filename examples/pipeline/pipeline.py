"""Views of pages, out of a queue: all of them into Parquet files, and how many each page had into another queue.

    spark-submit examples/pipeline/pipeline.py --servers localhost:2229 --folder var/pipeline
    spark-submit --master spark://10.0.0.1:7077 examples/pipeline/pipeline.py --servers mq1,mq2 --folder /shared

A view is JSON, `{"time": "2026-01-31T12:00:00Z", "page": "/buy", "user": "u7"}`. Views are put to the queue `views`,
and come to both of its children: each is read by one of two queries, by ids, so that each view counts exactly once
whatever is killed and started anew. Counts are put to `popular` with a key, by which whoever takes them drops doubles.
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
"""A count is for that long."""

LATEST = "20 seconds"
"""So much later than others a view may come and be counted. Counts of a window are put when this time is over."""


def views(spark: SparkSession, servers: str, queue: str) -> DataFrame:
    """The views of a queue. Of what is none, all columns but `raw` are null: it is kept, and never fails the stream."""
    items = spark.readStream.format("kestrel").option("servers", servers).option("queue", queue).load()
    raw = F.col("data").cast("string")
    return items.select(raw.alias("raw"), F.from_json(raw, VIEW).alias("view")).select("raw", "view.*")


def archive(spark: SparkSession, servers: str, folder: str) -> StreamingQuery:
    """All views, as Parquet files by day."""
    daily = views(spark, servers, "views+archive").withColumn("day", F.to_date("time"))
    writing = daily.writeStream.queryName("archive").format("parquet").partitionBy("day")
    return writing.option("checkpointLocation", f"{folder}/checkpoints/archive").start(f"{folder}/views")


def count(spark: SparkSession, servers: str, folder: str) -> StreamingQuery:
    """How many views each page had in each window, into the queue `popular`, once a window is over."""
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
    """Run both queries until one of them fails, or somebody stops them."""
    parser = argparse.ArgumentParser(description="Count views of pages, and keep them.")
    parser.add_argument("--servers", default="localhost:2229", help="thrift ports, with commas (localhost:2229)")
    parser.add_argument("--folder", default="var/pipeline", help="where everybody finds it: checkpoints and files")
    arguments = parser.parse_args()
    folder = arguments.folder if "://" in arguments.folder else str(Path(arguments.folder).absolute())
    spark = SparkSession.builder.appName("views").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    queries = [archive(spark, arguments.servers, folder), count(spark, arguments.servers, folder)]
    print(f"{len(queries)} queries run; Ctrl-C ends them, and the next start goes on where they were", flush=True)
    try:
        spark.streams.awaitAnyTermination()
    except KeyboardInterrupt:
        for query in queries:
            query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
