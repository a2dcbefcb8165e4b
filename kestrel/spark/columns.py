"""The columns of the tables that journals are read as. docs/spark.md has them with their units."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_STRING, _INT, _LONG, _BINARY = StringType(), IntegerType(), LongType(), BinaryType()

_RANGES = ArrayType(StructType([StructField("first", _LONG, False), StructField("last", _LONG, False)]), False)
_ERROR_COUNTS = ArrayType(StructType([StructField("item_id", _LONG, False), StructField("errors", _INT, False)]), False)
_TARGETS = StructType(
    [
        StructField("readers", ArrayType(_STRING, False), False),
        StructField("are_left_out", BooleanType(), False),
    ]
)


def _field(name: str, kind: DataType, comment: str, *, is_always: bool = False) -> StructField:
    return StructField(name, kind, not is_always, {"comment": comment})


_PLACE: Final = (
    _field("server", _STRING, "the server whose file it is", is_always=True),
    _field("folder", _STRING, "the path of the file's folder", is_always=True),
    _field("format", _STRING, "journal (Kestrel's) or scroll (libkestrel's)", is_always=True),
    _field("journal", _STRING, "of a scroll the parent queue whose it is; else as queue", is_always=True),
    _field("queue", _STRING, "the queue; in a writer file of a scroll the parent", is_always=True),
    _field("file", _STRING, "the file's name", is_always=True),
)

RECORDS: Final = StructType(
    [
        *_PLACE,
        _field("kind", _STRING, "current, rotated, pack, writer, reader, archived or alone", is_always=True),
        _field("file_order", _INT, "the file's place among those of its journal; null for a reader file"),
        _field("offset", _LONG, "where the record begins in the file, in bytes", is_always=True),
        _field("bytes", _LONG, "how long the record is, its header included", is_always=True),
        _field("opcode", _INT, "its number in the format", is_always=True),
        _field("op", _STRING, "its name in the format, or UNKNOWN", is_always=True),
        _field("xid", _INT, "the number of the open read that it is about; of a SAVE_XID the number it says"),
        _field("item_id", _LONG, "of a scroll: the item's id; of a READ_HEAD the last of those that are done"),
        _field("add_ms", _LONG, "when the item was added, in ms since 1970; null where the record does not say"),
        _field("expiry_ms", _LONG, "when the item expires, in ms since 1970; null for never"),
        _field("data_bytes", _LONG, "how long the item is, without its record's header"),
        _field("errors", _INT, "of a scroll's item: how often it had come back when it was written"),
        _field("restates", _INT, "of a STATE_DUMP: how many open reads it restates"),
        _field("ranges", _RANGES, "of READ_DONE and DONE_RANGES: the ids that are done, each range with both ends"),
        _field("error_counts", _ERROR_COUNTS, "of ERRORS: how often those items have come back"),
        _field("targets", _TARGETS, "of TARGETS: for whom the next item is"),
        _field("data", _BINARY, "the item; null where the record has none"),
    ]
)
"""A row for each record."""

PROBLEMS: Final = StructType(
    [
        *_PLACE,
        _field("offset", _LONG, "how far the file is good, in bytes; null where nobody could see"),
        _field("kind", _STRING, "unfinished, damaged, vanished or unreadable", is_always=True),
        _field("problem", _STRING, "in words", is_always=True),
        _field("bytes_behind", _LONG, "what stands behind the last good record, in bytes"),
    ]
)
"""A row for each file that is not what it should be."""

HISTORIES: Final = StructType(
    [
        *_PLACE,
        _field("offset", _LONG, "where the record that added it begins in that file, in bytes", is_always=True),
        _field("item_id", _LONG, "of a scroll: the item's id"),
        _field("add_ms", _LONG, "when it was added, in ms since 1970; null where the record does not say"),
        _field("expiry_ms", _LONG, "when it expires, in ms since 1970; null for never"),
        _field("data_bytes", _LONG, "how long it is", is_always=True),
        _field("state", _STRING, "queued, open, removed, confirmed, continued, or of a scroll done", is_always=True),
        _field("opens", _INT, "how often it was opened; null for a scroll, whose files do not say"),
        _field("aborts", _INT, "how often it came back to the head; null for a scroll"),
        _field("errors", _INT, "how often it came back because its reader failed", is_always=True),
        _field("xid", _INT, "of an open one: the number of the open read"),
        _field("position", _LONG, "of one that is still there: its place in the queue after a restart, 0 the head"),
        _field("taken_after_ms", _LONG, "it was first taken then or later: when the last item before that was added"),
        _field("taken_before_ms", _LONG, "it was first taken then or earlier: when the next item after that was added"),
        _field("removed_after_ms", _LONG, "it was gone for good then or later"),
        _field("removed_before_ms", _LONG, "it was gone for good then or earlier; null when nothing was added since"),
        _field("expired", _STRING, "of one that was removed: whether it had expired by then: yes, no or maybe"),
        _field("discarded", _STRING, "of one that was removed: maybe, or no; null where maxItems is not known"),
        _field("data", _BINARY, "the item; null where the records were read without it"),
    ]
)
"""A row for each item of each queue."""

ITEMS: Final = StructType(
    [
        _field("server", _STRING, "the server that had it, as host:port", is_always=True),
        _field("queue", _STRING, "its queue", is_always=True),
        _field("item_id", _LONG, "its id in the server's scroll; null where it was read at least once"),
        _field("add_ms", _LONG, "when it was put, in ms since 1970; null where it was read at least once"),
        _field("expiry_ms", _LONG, "when it expires, in ms since 1970; null for never, and as above"),
        _field("data", _BINARY, "the item", is_always=True),
    ]
)
"""A row for each item of a live queue."""

DATA: Final = "data"
