"""The streaming query of tests.torture.streams: reads a queue and writes Parquet files."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import functions as F

from kestrel.spark.session import session
from tests.spark import java

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run the query until it is killed, or with --available-now until the queue is empty."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--option", nargs=2, action="append", default=[])
    arguments = parser.parse_args()
    path = os.environ.get("PYTHONPATH", str(ROOT))
    settings = {
        "spark.executorEnv.PYTHONPATH": path,
        "spark.executor.extraJavaOptions": java.OPTIONS,
        "spark.ui.enabled": "false",
    }
    spark = session("streams", arguments.master, settings)
    spark.sparkContext.setLogLevel("ERROR")
    items = spark.readStream.format("kestrel").options(**dict(arguments.option)).load()
    numbers = items.select(F.substring_index(F.col("data").cast("string"), ":", 1).cast("long").alias("number"))
    writing = numbers.writeStream.format("parquet").option("checkpointLocation", str(arguments.folder / "checkpoint"))
    if arguments.available_now:
        writing = writing.trigger(availableNow=True)
    query = writing.start(str(arguments.folder / "sink"))
    print("started", flush=True)
    query.awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
