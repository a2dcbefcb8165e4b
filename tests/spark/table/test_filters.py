"""Pushed filters leave exactly the rows that Spark would leave."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import datasource

from kestrel.spark.table.reader import OF_FILES, OF_RECORDS, FilteringReader
from tests.journal.handwritten import REMOVE, add, addx, open_, save_xid
from tests.scroll.handwritten import READER, WRITER, put, read_head, targets
from tests.spark.tables import Row, journal_reader, rows_of, source, table
from tests.spark.times import at
from tests.tools.tool_processes import fill

TIMES = ("add_time", "expiry_time")

COMPARISONS: dict[type[datasource.Filter], Callable[[Any, Any], bool]] = {
    datasource.EqualTo: operator.eq,
    datasource.LessThan: operator.lt,
    datasource.LessThanOrEqual: operator.le,
    datasource.GreaterThan: operator.gt,
    datasource.GreaterThanOrEqual: operator.ge,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return journals and scrolls whose columns have many values and nulls."""
    path = tmp_path_factory.mktemp("spool")
    (path / "work").write_bytes(addx(b"a", 5, 7) + open_(1) + addx(b"bb", 6) + REMOVE + add(b"", 3) + save_xid(-2))
    fill(path, {"work.10": addx(b"ccc", 1 << 62, -1) * 3, "café": addx(b"a", -5)})
    (path / "ev.1").write_bytes(WRITER + put(2, b"x") + targets(0, b"c") + put(4, b"yy", 6, 9, 3))
    (path / "ev.read.c").write_bytes(READER + read_head(3))
    return path


def reader_of(folder: Path, *filters: datasource.Filter) -> tuple[FilteringReader, list[datasource.Filter]]:
    reader = journal_reader(source(folder, filterPushdown="true"))
    assert isinstance(reader, FilteringReader)
    return reader, list(reader.pushFilters(list(filters)))


def is_met(asked: datasource.Filter, row: Row) -> bool:
    """Evaluate a filter as SQL does: a comparison with null is not true."""
    value = row[asked.attribute[0]]  # type: ignore[attr-defined]
    if value is None:
        return False
    if isinstance(asked, datasource.IsNotNull):
        return True
    if isinstance(asked, datasource.In):
        return value in asked.value
    if isinstance(asked, datasource.StringStartsWith):
        return bool(value.startswith(asked.value))
    return COMPARISONS[type(asked)](value, asked.value)  # type: ignore[attr-defined]


@st.composite
def filters(draw: st.DrawFn, rows: list[Row]) -> datasource.Filter:
    """Return a filter of any column, with a value of the column or one near it."""
    column = draw(st.sampled_from([*OF_FILES, *OF_RECORDS]))
    is_text = column in OF_FILES or column == "op"
    there = sorted({row[column] for row in rows if row[column] is not None})
    near: list[Any] = ["w", "é", ""] if is_text else [at(0), at(3)] if column in TIMES else [0, 3]
    value = st.sampled_from([*there, *near])
    kinds: list[Callable[[], datasource.Filter]] = [
        lambda: datasource.IsNotNull((column,)),
        lambda: datasource.In((column,), tuple(draw(st.lists(value | st.none(), max_size=3)))),
        lambda: draw(st.sampled_from(list(COMPARISONS)))((column,), draw(value)),  # type: ignore[call-arg]
    ]
    if is_text:
        kinds.append(lambda: datasource.StringStartsWith((column,), draw(value)[:2]))
    return draw(st.sampled_from(kinds))()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_filters_leave_the_matching_rows(folder: Path, data: st.DataObject) -> None:
    everything = table(folder)
    asked = data.draw(st.lists(filters(everything), min_size=1, max_size=3))
    reader, left = reader_of(folder, *asked)
    assert left == []
    assert list(rows_of(reader)) == [row for row in everything if all(is_met(each, row) for each in asked)]


def test_files_without_matching_rows_are_omitted_from_the_plan(folder: Path) -> None:
    reader, _ = reader_of(folder, datasource.EqualTo(("queue",), "work"), datasource.EqualTo(("kind",), "current"))
    planned = [each.file.owner.file for task in reader.partitions() for each in task.slices]  # type: ignore[attr-defined]
    assert planned == ["work"]
    assert len(journal_reader(source(folder)).partitions()) == 1
    nothing, _ = reader_of(folder, datasource.EqualTo(("server",), "nobody"))
    assert nothing.partitions() == []


@pytest.mark.parametrize(
    "asked",
    [
        datasource.Not(datasource.EqualTo(("op",), "ADDX")),
        datasource.EqualNullSafe(("xid",), None),
        datasource.IsNull(("xid",)),
        datasource.StringContains(("op",), "D"),
        datasource.EqualTo(("data",), b"a"),
        datasource.EqualTo(("file_order",), 1),
        datasource.EqualTo(("targets", "are_left_out"), True),
        datasource.EqualTo(("errors",), 3),
    ],
)
def test_unsupported_filters_are_left_to_spark(folder: Path, asked: datasource.Filter) -> None:
    reader, left = reader_of(folder, asked, datasource.EqualTo(("op",), "PUT"))
    assert left == [asked]
    assert [row["op"] for row in rows_of(reader)] == ["PUT", "PUT"]
