"""Conversion of items of live queues to Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrel.client.thrift import RangeItem


class ItemRows:
    """A builder of rows for the items of one server, with the columns of a schema that is a subset of `ITEMS`."""

    def __init__(self, schema: StructType, server: str, queue: str) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._texts = {"server": server, "queue": queue}

    def by_ids(self, items: Sequence[RangeItem]) -> pa.RecordBatch:
        """Return the rows of items that were read by id."""
        columns = {
            "item_id": pa.array([item.id for item in items], pa.int64()),
            "add_ms": pa.array([item.add_ms for item in items], pa.int64()),
            "expiry_ms": pa.array([item.expiry_ms or None for item in items], pa.int64()),
            "data": pa.array([item.data for item in items], pa.binary()),
        }
        return self._batch(columns, len(items))

    def of_data(self, items: Sequence[bytes]) -> pa.RecordBatch:
        """Return the rows of items whose data is known, but not their ids and times."""
        return self._batch({"data": pa.array(items, pa.binary())}, len(items))

    def _batch(self, columns: dict[str, pa.Array], number: int) -> pa.RecordBatch:
        arrays = []
        for field in self._schema:
            if field.name in self._texts:
                array = pa.repeat(pa.scalar(self._texts[field.name], field.type), number)
            else:
                array = columns.get(field.name)
            arrays.append(pa.nulls(number, field.type) if array is None else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
