"""From records to histories of items: ``histories(spark.read.format("kestrel").load(...))``.

Spark brings the records of each journal together and in order; then they are done one by one, as a start of the server
does them. What is in memory while a journal is gone through is said in `kestrel.spark.history.journal` and
`kestrel.spark.history.scroll`: the items that its queue had at one time, some 500 bytes each, and with the column
``data`` their data.
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
    """A row for each item of each queue (`kestrel.spark.columns.HISTORIES`), from all records of their journals.

    The records are those of the table, whole journals of them: what is filtered out has not happened. Leave out the
    column ``data`` (or read with ``option("payload", "false")``) unless the histories are to have it. `max_items` is
    the limit of all queues, or of each by its name: with it, what may have been discarded is told. `queue` is a pattern
    of names: the histories of such queues alone.
    """
    limits = max_items if isinstance(max_items, int | None) else dict(max_items)
    wanted = [*NEEDED, DATA] if DATA in records.columns else list(NEEDED)
    schema = to_arrow_schema(HISTORIES, timezone="UTC")

    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return replay_histories(batches, limits, schema, queue)

    in_order = records.select(*wanted).repartition(*GROUP)
    in_order = in_order.sortWithinPartitions(*GROUP, F.asc_nulls_first("file_order"), "file", "offset")
    return in_order.mapInArrow(replay, HISTORIES)
