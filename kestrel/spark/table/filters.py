"""Filters of a query that the reader applies: it skips files, and drops records before Spark gets them.

They are used only with the option ``filterPushdown``. Spark then requires ``spark.sql.python.filterPushdown.enabled``,
and without it refuses a source that takes filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
"""Columns with one value for all records of a file."""

OF_RECORDS: Final = ("op", "opcode", "xid", "item_id", "add_ms", "expiry_ms", "data_bytes", "offset", "bytes")
"""Columns with a value for each record."""

_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter of one column. A null value never meets it."""

    column: str
    filter: Filter

    def is_met_by(self, file: PlannedFile) -> bool:
        """Return True if the file's records meet the condition. The column must be one of `OF_FILES`."""
        value = file.kind.value if self.column == "kind" else getattr(file.owner, self.column)
        return bool(self.met(pa.array([value], pa.string()))[0].as_py())

    def met(self, values: pa.Array) -> pa.Array:
        """Return a boolean for each value, true if it meets the condition."""
        asked = self.filter
        if isinstance(asked, IsNotNull):
            return pc.is_valid(values)
        if isinstance(asked, In):
            return pc.is_in(values, pa.array([each for each in asked.value if each is not None], values.type))
        if isinstance(asked, StringStartsWith):
            return pc.fill_null(pc.starts_with(values, asked.value), False)
        value = getattr(asked, "value")  # noqa: B009 - all comparisons have it, but their base class does not
        return pc.fill_null(getattr(pc, _COMPARISONS[type(asked)])(values, value), False)


def split_filters(filters: Iterable[Filter]) -> tuple[list[Condition], list[Filter]]:
    """Return the conditions for the reader, and the filters left to Spark."""
    conditions, left = [], []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        is_known = type(each) in _COMPARISONS or isinstance(each, In | IsNotNull | StringStartsWith)
        if is_known and len(path) == 1 and path[0] in (*OF_FILES, *OF_RECORDS):
            conditions.append(Condition(path[0], each))
        else:
            left.append(each)
    return conditions, left
