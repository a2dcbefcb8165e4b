"""The columns of all tables and streams. docs/spark.md and docs/streams.md describe them with their units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from kestrel.spark.options import SourceFailed

_STRING, _INT, _LONG, _BINARY, _TIME = T.StringType(), T.IntegerType(), T.LongType(), T.BinaryType(), T.TimestampType()


def struct_of(**kinds: T.DataType) -> T.StructType:
    """Return a struct with fields of these types, none of which may be null."""
    return T.StructType([T.StructField(name, kind, False) for name, kind in kinds.items()])


_RANGES = T.ArrayType(struct_of(first=_LONG, last=_LONG), False)
_ERROR_COUNTS = T.ArrayType(struct_of(item_id=_LONG, errors=_INT), False)
_TARGETS = struct_of(readers=T.ArrayType(_STRING, False), are_left_out=T.BooleanType())


def _field(name: str, kind: T.DataType, comment: str, *, is_always: bool = False) -> T.StructField:
    return T.StructField(name, kind, not is_always, {"comment": comment})


_PLACE: Final = (
    _field("server", _STRING, "the server that the file belongs to", is_always=True),
    _field("folder", _STRING, "the path of the file's folder", is_always=True),
    _field("format", _STRING, "journal (Kestrel's) or scroll (libkestrel's)", is_always=True),
    _field("journal", _STRING, "the parent queue of a scroll; of a journal the same as queue", is_always=True),
    _field("queue", _STRING, "the queue; the parent queue for a writer file of a scroll", is_always=True),
    _field("file", _STRING, "the file's name", is_always=True),
)

_ADD_TIME: Final = _field("add_time", _TIME, "when the item was added; null where the record does not say")
_EXPIRY_TIME: Final = _field("expiry_time", _TIME, "when the item expires; null for never")

RECORDS: Final = T.StructType(
    [
        *_PLACE,
        _field("kind", _STRING, "current, rotated, pack, writer, reader, archived or alone", is_always=True),
        _field("file_order", _INT, "the position of the file among the files of its journal; null for a reader file"),
        _field("offset", _LONG, "the offset of the record in the file, in bytes", is_always=True),
        _field("bytes", _LONG, "the length of the record in bytes, header included", is_always=True),
        _field("opcode", _INT, "the record's number in the format", is_always=True),
        _field("op", _STRING, "the record's name in the format, or UNKNOWN", is_always=True),
        _field("xid", _INT, "the number of the open read; of a SAVE_XID the stored number"),
        _field("item_id", _LONG, "scroll only: the item's id; of a READ_HEAD the last id that is done"),
        _ADD_TIME,
        _EXPIRY_TIME,
        _field("data_bytes", _LONG, "the length of the item in bytes, without the record's header"),
        _field("errors", _INT, "scroll only: how often the item had been redelivered when it was written"),
        _field("restates", _INT, "STATE_DUMP only: the number of open reads that it restates"),
        _field("ranges", _RANGES, "READ_DONE and DONE_RANGES only: ranges of done ids, both ends included"),
        _field("error_counts", _ERROR_COUNTS, "ERRORS only: the redeliveries of each item"),
        _field("targets", _TARGETS, "TARGETS only: which readers the next item is for, or which are left out"),
        _field("data", _BINARY, "the item; null where the record has none"),
    ]
)

PROBLEMS: Final = T.StructType(
    [
        *_PLACE,
        _field("offset", _LONG, "the end of the good part of the file, in bytes; null if unknown"),
        _field("kind", _STRING, "unfinished, damaged, vanished or unreadable", is_always=True),
        _field("problem", _STRING, "a description of the problem", is_always=True),
        _field("bytes_behind", _LONG, "the number of bytes after the last good record"),
    ]
)
"""Columns of the problems table, one row for each file that is incomplete, damaged or unreadable."""

HISTORIES: Final = T.StructType(
    [
        *_PLACE,
        _field("offset", _LONG, "the offset in that file of the record that added the item, in bytes", is_always=True),
        _field("item_id", _LONG, "scroll only: the item's id"),
        _ADD_TIME,
        _EXPIRY_TIME,
        _field("data_bytes", _LONG, "the length of the item in bytes", is_always=True),
        _field("state", _STRING, "queued, open, removed, confirmed, continued, or (scroll only) done", is_always=True),
        _field("opens", _INT, "how often the item was opened; null for a scroll, which does not record it"),
        _field("aborts", _INT, "how often the item was put back to the head; null for a scroll"),
        _field("errors", _INT, "how often the item was redelivered because its reader failed", is_always=True),
        _field("xid", _INT, "open items only: the number of the open read"),
        _field("position", _LONG, "queued and open items only: the place in the queue after a restart, 0 is the head"),
        _field("taken_after", _TIME, "earliest time of the first read: when the last item before it was added"),
        _field("taken_before", _TIME, "latest time of the first read: when the next item after it was added"),
        _field("removed_after", _TIME, "earliest time of the removal"),
        _field("removed_before", _TIME, "latest time of the removal; null if nothing was added since"),
        _field("expired", _STRING, "removed items only: whether the item had expired by then: yes, no or maybe"),
        _field("discarded", _STRING, "removed items only: maybe or no; null if maxItems is not known"),
        _field("data", _BINARY, "the item; null where the records were read without it"),
    ]
)

ITEMS: Final = T.StructType(
    [
        _field("server", _STRING, "the server that had the item, as host:port", is_always=True),
        _field("queue", _STRING, "the queue of the item", is_always=True),
        _field("item_id", _LONG, "the item's id in the server's scroll; null with at-least-once delivery"),
        _field("add_time", _TIME, "when the item was put; null with at-least-once delivery"),
        _field("expiry_time", _TIME, "when the item expires; null for never or at-least-once delivery"),
        _field("data", _BINARY, "the item", is_always=True),
    ]
)

_EXPORTED: Final = (
    _field("server", _STRING, "the server of the item"),
    _field("folder", _STRING, "the path of its folder"),
    _field("queue", _STRING, "the queue; null where only a hash of its name is known"),
    _field("position", _LONG, "the position in the queue, or among all added items; 0 is the first"),
    _ADD_TIME,
    _EXPIRY_TIME,
    _field("errors", _INT, "how often the item was redelivered because its reader failed"),
)

EXPORTED_ITEMS: Final = T.StructType([*_EXPORTED, _field("data", _BINARY, "the item")])

EXPORTED_TEXTS: Final = T.StructType(
    [
        *_EXPORTED,
        _field("data", _STRING, "the item as text; null if it is not valid UTF-8"),
        _field("base64", _STRING, "the item in base64, if it is not valid UTF-8"),
    ]
)
"""Columns of exported items in JSON, which has no bytes."""

EXPORT_PROBLEM: Final = T.StructField("problem", struct_of(place=_LONG, sentence=_STRING, is_complaint=T.BooleanType()))
"""Column of a row that describes a problem of the source files instead of an item."""

EXPORT_TOTALS: Final = T.StructField("totals", struct_of(server=_STRING, queues=_LONG, items=_LONG, bytes=_LONG))
"""Column of the last row of each unit: what was exported from it. Bytes are those of the items' data."""

DATA: Final = "data"


def drop_column(schema: T.StructType, name: str) -> T.StructType:
    """Return the schema without the column `name`."""
    return T.StructType([field for field in schema if field.name != name])


def check_schema(asked: T.StructType, known: T.StructType) -> None:
    """Raise `SourceFailed` unless `known` has each column of `asked` with the same type.

    A column that may be null in `known` must also be nullable in `asked`.
    """
    fields = {field.name: field for field in known}
    for field in asked:
        if field.name not in fields:
            why = ' with option("payload", "false")' if field.name == DATA and "op" in fields else ""
            raise SourceFailed(f"there is no column {field.name}{why}: the columns are {', '.join(fields)}")
        is_known = fields[field.name]
        if field.dataType.simpleString() != is_known.dataType.simpleString():
            raise SourceFailed(
                f"the column {field.name} is {is_known.dataType.simpleString()}, not {field.dataType.simpleString()}"
            )
        if is_known.nullable and not field.nullable:
            raise SourceFailed(f"the column {field.name} may be null: leave out NOT NULL")


EARLIEST_MS: Final = -62_104_060_800_000
"""The first moment of the year 2, in ms since 1970."""

LATEST_MS: Final = 253_370_764_800_000
"""The first moment of the year 9999, in ms since 1970."""

ARROW_TIME: Final = pa.timestamp("us", tz="UTC")


def times_of(ms: pa.Array) -> pa.Array:
    """Return times in ms since 1970 as timestamps.

    A time before `EARLIEST_MS` or after `LATEST_MS` becomes that limit. Python has only the years 1 to 9999, and a time
    zone may move a time into the next year. So rows with any time can be collected, and the order of times is kept.
    """
    validity, numbers = ms.buffers()
    us = np.clip(np.frombuffer(numbers, np.int64, ms.offset + len(ms)), EARLIEST_MS, LATEST_MS)
    us *= 1000
    return pa.Array.from_buffers(ARROW_TIME, len(ms), [validity, pa.py_buffer(us)], offset=ms.offset)


def ms_of(times: pa.Array) -> pa.Array:
    """Return timestamps in microseconds as ms since 1970."""
    return pc.divide(times.cast(pa.int64()), 1000)


def batches_of(
    rows: Iterable[Sequence[Any]], schema: pa.Schema, most_rows: int, most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows, which have the columns of `schema` in order, in batches that hold items of bounded size.

    The rows have times in ms since 1970. A batch is complete at `most_rows` rows, or as soon as its items have
    `most_bytes` bytes.
    """
    of_items = [place for place, name in enumerate(schema.names) if name in (DATA, "base64")]
    together: list[Sequence[Any]] = []
    size = 0

    def batch() -> pa.RecordBatch:
        columns = zip(zip(*together, strict=True), schema, strict=True)
        return pa.RecordBatch.from_arrays([_array(column, field.type) for column, field in columns], schema=schema)

    for row in rows:
        together.append(row)
        for place in of_items:
            if row[place] is not None:
                size += len(row[place])
        if len(together) >= most_rows or size >= most_bytes:
            yield batch()
            together.clear()
            size = 0
    if together:
        yield batch()


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return times_of(pa.array(values, pa.int64())) if kind == ARROW_TIME else pa.array(values, kind)
