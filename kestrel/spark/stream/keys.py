"""Columns of items that carry a key (`kestrel.keyed`)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, conv, hex, length, lit, substring, when
from pyspark.sql.types import BinaryType

from kestrel.keyed import LENGTH_BYTES, MARK
from kestrel.spark.columns import DATA
from kestrel.spark.failures import SourceFailed
from kestrel.spark.stream.item_columns import KEY

_BEGIN: Final = len(MARK) + LENGTH_BYTES
"""Number of bytes in front of the key."""


def with_keys(items: DataFrame) -> DataFrame:
    """Return the rows with the key of each item in a column `key`, and the original data in `data`.

    This reads items that were written with ``option("keys", "true")``. An item without a key is unchanged, and its
    `key` is null.

        items = spark.readStream.format("kestrel").option("servers", "mq1,mq2").option("queue", "work").load()
        keyed = with_keys(items).where("key IS NOT NULL").withColumn("read_at", current_timestamp())
        once = keyed.withWatermark("read_at", "1 hour").dropDuplicatesWithinWatermark(["key"])

    Here `once` has only the first of the items with the same key that are read within an hour. Raises `SourceFailed`
    if there is no binary column `data`. The result consists of Spark expressions and runs no Python.
    """
    if DATA not in items.columns or not isinstance(items.schema[DATA].dataType, BinaryType):
        raise SourceFailed("there is no binary column data: select the column data of a queue")
    item = col(DATA)
    size = conv(hex(substring(item, len(MARK) + 1, LENGTH_BYTES)), 16, 10).cast("int")
    is_keyed = (substring(item, 1, len(MARK)) == lit(MARK)) & (size > 0) & (length(item) >= size + _BEGIN)
    key = when(is_keyed, substring(item, lit(_BEGIN + 1), size))
    data = when(is_keyed, substring(item, size + _BEGIN + 1, length(item))).otherwise(item)
    return items.withColumns({KEY: key, DATA: data})
