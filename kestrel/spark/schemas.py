"""Checks of the schema that a query requests."""

from __future__ import annotations

from pyspark.sql.types import StructType

from kestrel.spark.columns import DATA
from kestrel.spark.failures import SourceFailed


def drop_column(schema: StructType, name: str) -> StructType:
    """Return the schema without the column `name`."""
    return StructType([field for field in schema if field.name != name])


def check_schema(asked: StructType, known: StructType) -> None:
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
