"""Parses schemas without the JVM that Spark would use."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BinaryType, DataType, DoubleType, IntegerType, LongType, StringType, StructType

_TYPES: Final[dict[str, DataType]] = {
    "BINARY": BinaryType(),
    "STRING": StringType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "STRUCT": StructType().add("a", IntegerType()),
}


def columns_of(text: str) -> StructType:
    """Return the columns of a text such as ``data BINARY, expires_in_ms BIGINT``. A STRUCT has one INT."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, _TYPES[kind])
    return schema
