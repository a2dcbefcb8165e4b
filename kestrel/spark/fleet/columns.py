"""The columns of exported and imported items."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_STRING, _LONG = StringType(), LongType()


def _field(name: str, kind: DataType, comment: str) -> StructField:
    return StructField(name, kind, True, {"comment": comment})


_PLACE: Final = (
    _field("server", _STRING, "the server of the item"),
    _field("folder", _STRING, "the path of its folder"),
    _field("queue", _STRING, "the queue; null where only a hash of its name is known"),
    _field("position", _LONG, "the position in the queue, or among all added items; 0 is the first"),
    _field("add_ms", _LONG, "when the item was added, in ms since 1970; null where the record does not say"),
    _field("expiry_ms", _LONG, "when the item expires, in ms since 1970; null for never"),
    _field("errors", IntegerType(), "how often the item was redelivered because its reader failed"),
)

ITEMS: Final = StructType([*_PLACE, _field("data", BinaryType(), "the item")])
"""Columns of exported items, one row an item."""

TEXT_ITEMS: Final = StructType(
    [
        *_PLACE,
        _field("data", _STRING, "the item as text; null if it is not valid UTF-8"),
        _field("base64", _STRING, "the item in base64, if it is not valid UTF-8"),
    ]
)
"""Columns of exported items in JSON, which has no bytes."""

PROBLEM: Final = StructField(
    "problem",
    StructType(
        [
            StructField("place", _LONG, False),
            StructField("sentence", _STRING, False),
            StructField("is_complaint", BooleanType(), False),
        ]
    ),
)
"""Column of a row that describes a problem of the source files instead of an item."""
