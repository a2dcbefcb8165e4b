"""A Spark job that counts the items of each queue by their final state.

    spark-submit examples/spark_histories.py /var/spool/kestrel
    spark-submit --master spark://10.0.0.1:7077 examples/spark_histories.py '/srv/queues/*'
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kestrel.spark import histories


def main(paths: list[str]) -> int:
    """Read the journals in the folders, and print one line for each queue and state. Return the exit status."""
    if not paths:
        print("No journals given. Name folders of journals, or patterns of folders.", file=sys.stderr)
        return 2
    spark = SparkSession.builder.appName("histories").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = spark.read.format("kestrel").option("payload", "false").load(paths)
    counted = histories(records).groupBy("server", "queue", "state").agg(
        F.count("*").alias("items"), F.sum("data_bytes").alias("bytes"), F.sum("aborts").alias("aborts")
    )
    for row in counted.orderBy("server", "queue", "state").toLocalIterator():
        print(f"{row.server}  {row.queue}  {row.state}: {row['items']} items, {row.bytes} bytes, {row.aborts} aborts")
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
