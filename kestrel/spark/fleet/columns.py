"""The columns of items that go out of a fleet's folders, or into one."""

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
    _field("server", _STRING, "the server whose item it is"),
    _field("folder", _STRING, "the path of its folder"),
    _field("queue", _STRING, "the queue; null where only a hash of its name is known"),
    _field("position", _LONG, "its place in the queue, or among all that were added; 0 is the first"),
    _field("add_ms", _LONG, "when it was added, in ms since 1970; null where the record does not say"),
    _field("expiry_ms", _LONG, "when it expires, in ms since 1970; null for never"),
    _field("errors", IntegerType(), "how often it was taken and came back failed"),
)

ITEMS: Final = StructType([*_PLACE, _field("data", BinaryType(), "the item")])
"""A row for each item."""

TEXT_ITEMS: Final = StructType(
    [
        *_PLACE,
        _field("data", _STRING, "the item as text; null where it is no UTF-8"),
        _field("base64", _STRING, "the item, where it is no UTF-8"),
    ]
)
"""The same in JSON, which has no bytes."""

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
"""A row that has it has no item: it says what is wrong with files that were read."""
