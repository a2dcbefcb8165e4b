"""Filters of a query that the reading takes over: files are left out, and records before they reach Spark.

Only where the option ``filterPushdown`` says so: Spark wants ``spark.sql.python.filterPushdown.enabled`` then, and
refuses a source that takes filters without it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from kestrel.spark.table.planned_file import PlannedFile

OF_FILES: Final = ("server", "folder", "format", "journal", "queue", "file", "kind")
"""Columns that have one value in all records of a file."""

OF_RECORDS: Final = ("op", "opcode", "xid", "item_id", "add_ms", "expiry_ms", "data_bytes", "offset", "bytes")
"""Columns that are looked at record by record."""

_COMPARISONS: Final[dict[type[Filter], tuple[Callable[[Any, Any], Any], str]]] = {
    EqualTo: (operator.eq, "equal"),
    GreaterThan: (operator.gt, "greater"),
    GreaterThanOrEqual: (operator.ge, "greater_equal"),
    LessThan: (operator.lt, "less"),
    LessThanOrEqual: (operator.le, "less_equal"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """What a query asks of one column. A null never meets it."""

    column: str
    filter: Filter

    def is_met_by(self, file: PlannedFile) -> bool:
        """Whether the file's records meet it. Only of columns `OF_FILES`."""
        value = file.kind.value if self.column == "kind" else getattr(file.owner, self.column)
        asked = self.filter
        if isinstance(asked, IsNotNull):
            return True
        if isinstance(asked, In):
            return value in asked.value
        if isinstance(asked, StringStartsWith):
            return bool(value.startswith(asked.value))
        compare, _ = _COMPARISONS[type(asked)]
        return bool(compare(value, _value(asked)))

    def met(self, values: pa.Array) -> pa.Array:
        """Of each value, whether it meets it."""
        asked = self.filter
        if isinstance(asked, IsNotNull):
            return pc.is_valid(values)
        if isinstance(asked, In):
            return pc.is_in(values, pa.array([each for each in asked.value if each is not None], values.type))
        if isinstance(asked, StringStartsWith):
            return pc.fill_null(pc.starts_with(values, asked.value), False)
        _, name = _COMPARISONS[type(asked)]
        return pc.fill_null(getattr(pc, name)(values, _value(asked)), False)


def _value(comparison: Filter) -> Any:
    return getattr(comparison, "value")  # noqa: B009 - each of them has one, and Filter none


def split_filters(filters: Iterable[Filter]) -> tuple[list[Condition], list[Filter]]:
    """The conditions that the reading sees to, and the filters that are left to Spark."""
    conditions, left = [], []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        is_known = type(each) in _COMPARISONS or isinstance(each, In | IsNotNull | StringStartsWith)
        if is_known and len(path) == 1 and path[0] in (*OF_FILES, *OF_RECORDS):
            conditions.append(Condition(path[0], each))
        else:
            left.append(each)
    return conditions, left
