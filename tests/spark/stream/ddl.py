"""Schemas in words, without the JVM that Spark asks to read them."""

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
    """Columns as ``data BINARY, expires_in_ms BIGINT``. A STRUCT is one with an int."""
    schema = StructType()
    for column in text.split(", "):
        name, kind = column.split()
        schema.add(name, _TYPES[kind])
    return schema
