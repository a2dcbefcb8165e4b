"""Histories without Spark: what its tasks would do, done here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from kestrel.spark.columns import HISTORIES, RECORDS
from kestrel.spark.history.histories import GROUP, ORDER, Limits, replay_histories
from tests.spark.tables import Row, table


def histories_in(*paths: Path | str, limits: Limits = None, batch_rows: int = 7, **options: str) -> list[Row]:
    """All histories of the journals there, whose records come in batches of so many; with `queue`, of such queues."""
    schema = to_arrow_schema(RECORDS, timezone="UTC")
    rows = sorted(table(*paths, **options), key=_place)
    starts = range(0, len(rows), batch_rows)
    batches = [pa.RecordBatch.from_pylist(rows[start : start + batch_rows], schema) for start in starts]
    told = replay_histories(batches, limits, to_arrow_schema(HISTORIES, timezone="UTC"), options.get("queue"))
    return [row for batch in told for row in batch.to_pylist()]


def _place(row: Row) -> tuple[Any, ...]:
    """As Spark sorts, nulls first."""
    return tuple((-1 if row[name] is None else row[name]) for name in (*GROUP, *ORDER))
