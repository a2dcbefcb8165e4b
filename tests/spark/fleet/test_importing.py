"""Requirements for items to be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from kestrel.spark.columns import EXPORTED_ITEMS, EXPORTED_TEXTS
from kestrel.spark.fleet.export import ExportFormat
from kestrel.spark.fleet.importing import check_columns, check_survey, read_items
from kestrel.spark.options import SourceFailed
from kestrel.tools.tool_runner import ToolFailed

ROW: dict[str, Any] = {
    "queue": "work",
    "server": "web1",
    "folder": "/spool",
    "items": 2,
    "data_bytes": 3,
    "largest": 2,
    "without_data": 0,
    "least_errors": 0,
    "most_errors": 1,
    "bad": 0,
}


def test_names_of_queues_are_bytes() -> None:
    rows = [{**ROW, "queue": name} for name in ("caf\xe9", "<script>", "work+x")]
    assert check_survey(rows) == [b"caf\xe9", b"<script>", b"work+x"]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "there are no items to import"),
        (
            [ROW, {**ROW, "queue": None, "bad": 2}, {**ROW, "bad": 1}],
            "3 lines of the items cannot be read as JSON, or a column has a wrong type: nothing is imported",
        ),
        ([{**ROW, "queue": None}], "there are items without a queue"),
        ([{**ROW, "queue": "a.b"}], "no queue can have the name a.b: a queue name cannot hold"),
        ([{**ROW, "queue": "../../etc/x"}], "no queue can have the name ../../etc/x: "),
        ([{**ROW, "queue": "\u20ac"}], "write each byte of it as the Latin-1 character"),
        ([{**ROW, "queue": ""}], "queue name required"),
        ([{**ROW, "queue": "x" * 201}], "cannot be longer than 200 bytes"),
        ([{**ROW, "queue": "\xe9" * 150}], "is too long for a file"),
        ([ROW, {**ROW, "server": "web2"}], "server web1, folder /spool and of server web2, folder /spool: choose"),
        ([{**ROW, "without_data": 2}], "queue work: 2 of its items have no data"),
        ([{**ROW, "largest": 2**31 - 16}], "queue work: an item has at most 2147483631 bytes"),
        ([{**ROW, "least_errors": -1}], "queue work: errors are a number from 0 to 2147483647"),
    ],
)
def test_invalid_queue_name_is_refused_in_a_sentence(rows: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(ToolFailed) as refused:
        check_survey(rows)
    assert sentence in str(refused.value)
    assert refused.value.status == 2


def test_items_of_an_unknown_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("none")
    with pytest.raises(SourceFailed, match="say what they are with --format"):
        read_items(None, str(tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [None, ExportFormat.PARQUET])
@pytest.mark.parametrize(
    "names", [["part-0.parquet"], ["_temporary"], ["part-0.parquet", "_SUCCESS", "_temporary"], ["part-0.json", "x"]]
)
def test_truncated_export_is_refused(tmp_path: Path, names: list[str], form: ExportFormat | None) -> None:
    for name in names:
        (tmp_path / name).touch()
    for path in (tmp_path, tmp_path.parent / "*"):
        with pytest.raises(SourceFailed, match=r"is incomplete: its writer was interrupted"):
            read_items(None, str(path), form)  # type: ignore[arg-type]


def test_missing_items_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceFailed, match=r"there is no .*/missing: name a folder of exported items"):
        read_items(None, str(tmp_path / "missing"))  # type: ignore[arg-type]


def columns(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


def test_columns_may_be_some_of_an_export() -> None:
    check_columns(EXPORTED_ITEMS)
    check_columns(EXPORTED_TEXTS)
    check_columns(columns(queue=T.StringType(), data=T.StringType(), errors=T.LongType(), more=T.DoubleType()))


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (columns(data=T.StringType()), "the items have no column queue: they have data"),
        (columns(queue=T.StringType()), "the items have no column data: they have queue"),
        (columns(queue=T.BinaryType(), data=T.BinaryType()), "the column queue is binary: make it string"),
        (columns(queue=T.StringType(), data=T.LongType()), "the column data is bigint: make it binary or string"),
        (
            columns(queue=T.StringType(), data=T.StringType(), add_time=T.LongType()),
            "the column add_time is bigint: make it timestamp",
        ),
    ],
)
def test_ambiguous_columns_are_refused(schema: T.StructType, sentence: str) -> None:
    with pytest.raises(SourceFailed) as refused:
        check_columns(schema)
    assert str(refused.value) == sentence
