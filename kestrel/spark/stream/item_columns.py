"""The columns of rows that are written to a queue, their conversion to items, and the key as a column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, conv, hex, length, lit, substring, when
from pyspark.sql.types import BinaryType, ByteType, DataType, IntegerType, LongType, ShortType, StringType, StructType

from kestrel.keyed import LENGTH_BYTES, MARK, join
from kestrel.spark.columns import DATA
from kestrel.spark.options import SourceFailed

KEY: Final = "key"
EXPIRES_IN_MS: Final = "expires_in_ms"

LONGEST_MS: Final = (1 << 31) - 1
"""Maximum expiry in the protocol, about 24 days."""

_BYTES: Final = (BinaryType, StringType)
_NUMBERS: Final = (LongType, IntegerType, ShortType, ByteType)

_TYPES: Final[Mapping[str, tuple[type[DataType], ...]]] = {DATA: _BYTES, EXPIRES_IN_MS: _NUMBERS, KEY: _BYTES}

_WANTED: Final = {
    DATA: "binary or string: cast it, or make a text of several columns by to_json(struct(...))",
    EXPIRES_IN_MS: "bigint: cast it",
    KEY: "binary or string: cast it",
}


class ItemColumns:
    """A mapping of columns to the parts of an item. Raises `SourceFailed` for columns that do not make an item."""

    def __init__(self, schema: StructType, *, has_keys: bool) -> None:
        needed = (DATA, KEY) if has_keys else (DATA,)
        ours = [name for name in _TYPES if has_keys or name != KEY]
        names = schema.names
        for field in schema:
            if field.name == KEY and not has_keys:
                raise SourceFailed('the column key requires option("keys", "true"): set it, or drop the column')
            if field.name not in ours:
                there_are = f"{', '.join(ours[:-1])} and {ours[-1]}"
                raise SourceFailed(f"a queue has no column {field.name}: select only {there_are}")
            if names.count(field.name) > 1:
                raise SourceFailed(f"there are two columns {field.name}: select one of them")
            if not isinstance(field.dataType, _TYPES[field.name]):
                kind = field.dataType.simpleString()
                raise SourceFailed(f"the column {field.name} has the type {kind}, not {_WANTED[field.name]}")
        for name in needed:
            if name not in names:
                raise SourceFailed(f'the required column {name} is missing: select something.alias("{name}")')
        self._places = {name: names.index(name) for name in names}

    def items_of(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield each distinct expiry in ms with its items, in their order. 0 means never, -1 already expired.

        Raises `SourceFailed` at the first row that is not a valid item.
        """
        data = self._bytes_of(batch, DATA)
        keys = self._bytes_of(batch, KEY) if KEY in self._places else None
        for expiry_ms, rows in self._rows_by_expiry(batch).items():
            yield expiry_ms, _items(data, keys, rows)

    def _bytes_of(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = batch.column(self._places[name])
        if column.null_count:
            raise SourceFailed(f"the column {name} is null in a row: filter by {name} IS NOT NULL")
        return column.cast(pa.large_binary())

    def _rows_by_expiry(self, batch: pa.RecordBatch) -> Mapping[int, Sequence[int]]:
        if EXPIRES_IN_MS not in self._places:
            return {0: range(batch.num_rows)}
        column = pc.fill_null(batch.column(self._places[EXPIRES_IN_MS]).cast(pa.int64()), 0)
        rows: dict[int, list[int]] = {}
        for row, expiry_ms in enumerate(column.to_pylist()):
            if expiry_ms > LONGEST_MS:
                raise SourceFailed(f"expires_in_ms must be at most {LONGEST_MS}, or 24 days, not {expiry_ms}")
            rows.setdefault(max(expiry_ms, -1), []).append(row)  # any negative expiry means already expired
        return rows


_ROWS_AT_ONCE: Final = 100
"""Rows that are converted to bytes together, which bounds the memory and is faster than one by one."""


def _items(data: pa.Array, keys: pa.Array | None, rows: Sequence[int]) -> Iterator[bytes]:
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[first : first + _ROWS_AT_ONCE]
        items = _values(data, some)
        if keys is None:
            yield from items
        else:
            try:
                yield from map(join, _values(keys, some), items)
            except ValueError as error:
                raise SourceFailed(f"the column key: {error}") from None


def _values(column: pa.Array, rows: Sequence[int]) -> list[bytes]:
    some = column.slice(rows[0], len(rows)) if isinstance(rows, range) else column.take(pa.array(rows))
    values: list[bytes] = some.to_pylist()
    return values


_BEGIN: Final = len(MARK) + LENGTH_BYTES
"""Number of bytes in front of the key."""


def with_keys(items: DataFrame) -> DataFrame:
    """Return the rows with the key of each item in a column `key`, and the original data in `data`.

    This reads items that were written with ``option("keys", "true")``. An item without a key is unchanged, and its
    `key` is null.

        items = spark.readStream.format("kestrel").option("servers", "mq1,mq2").option("subscribe", "work").load()
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
