"""Conversion of records to item histories: ``histories(spark.read.format("kestrel").load(...))``.

Spark groups and sorts the records of each journal. Then each journal is replayed record by record, as at a start of the
server. Memory use is that of `kestrel.spark.history.journal` and `kestrel.spark.history.scroll`. It is proportional to
the largest depth of a queue, some 500 bytes for each item, plus the data if there is a column ``data``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from kestrel.spark.columns import DATA, HISTORIES
from kestrel.spark.history.replay import GROUP, NEEDED, replay_histories


def histories(
    records: DataFrame, max_items: int | Mapping[str, int] | None = None, queue: str | None = None
) -> DataFrame:
    """Return a row for each item of each queue (`kestrel.spark.columns.HISTORIES`), from all records of their journals.

    The records must be those of whole journals; a record that was filtered out is not replayed. Leave out the column
    ``data``, or read with ``option("payload", "false")``, unless the histories need it. `max_items` is the limit of all
    queues, or of each queue by name; it is needed to find possible discards. `queue` is a pattern of names that limits
    the result to matching queues.
    """
    limits = max_items if isinstance(max_items, int | None) else dict(max_items)
    wanted = [*NEEDED, DATA] if DATA in records.columns else list(NEEDED)
    schema = to_arrow_schema(HISTORIES, timezone="UTC")

    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return replay_histories(batches, limits, schema, queue)

    in_order = records.select(*wanted).repartition(*GROUP)
    in_order = in_order.sortWithinPartitions(*GROUP, F.asc_nulls_first("file_order"), "file", "offset")
    return in_order.mapInArrow(replay, HISTORIES)
