"""Histories on Spark, compared with a replay of each journal without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kestrel.spark.item_histories import histories
from kestrel.spark.journal_histories import read_histories
from tests.journal.handwritten import REMOVE, addx, confirm, open_
from tests.scroll.handwritten import READER, WRITER, put, read_head
from tests.spark.tables import histories_in, planned_files, table
from tests.spark.times import collected
from tests.tools.tool_processes import fill


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        row = row["problem"] if isinstance(row.get("problem"), dict) else row
        return row["server"], row["queue"], row["file"], row["offset"], "kind" in row

    return sorted(rows, key=key)


@pytest.fixture
def folders(tmp_path: Path) -> str:
    """Return the pattern of five folders with journals and scrolls."""
    for number in range(5):
        folder = tmp_path / f"server{number}"
        folder.mkdir()
        for queue in range(3):
            items = b"".join(addx(b"%d" % each, each) + (REMOVE if each % 3 else b"") for each in range(1, 20))
            fill(folder, {f"q{queue}.{5 + number}": items + open_(1), f"q{queue}": addx(b"last", 30) + confirm(1)})
        (folder / "s.1").write_bytes(WRITER + b"".join(put(each, b"%d" % each) for each in range(1, 9)))
        fill(folder, {"s.read.a": READER + read_head(number), "s.read.b": READER + read_head(3)})
    return str(tmp_path / "*")


def test_each_journal_is_replayed_whole_and_in_order(spark: SparkSession, folders: str) -> None:
    records = spark.read.format("kestrel").option("partitionBytes", "100").load(folders)
    rows = [collected(row) for row in histories(records, max_items=7).collect()]
    assert in_order(rows) == in_order(histories_in(folders, limits=7))
    assert len(rows) == 5 * (3 * 20 + 2 * 8)


def test_histories_of_files_are_those_of_records_without_data(
    spark: SparkSession, folders: str, tmp_path: Path
) -> None:
    (tmp_path / "server3" / "q1").write_bytes(addx(b"last", 30) + b"\x02\x01")
    (tmp_path / "server4" / "q1").write_bytes(b"\xee")
    rows = [collected(row) for row in read_histories(spark, planned_files(folders), 7).collect()]
    problems = [row["problem"] for row in rows if row["problem"] is not None]
    found = [{name: value for name, value in row.items() if name != "problem"} for row in rows if not row["problem"]]
    assert in_order(found) == in_order([each | {"data": None} for each in histories_in(folders, limits=7)])
    assert in_order(problems) == in_order(table(folders, view="errors"))
    assert [each["kind"] for each in in_order(problems)] == ["unfinished", "damaged"]
    some = [collected(row) for row in read_histories(spark, planned_files(folders, queue="q1"), 7, "q1").collect()]
    assert in_order(some) == in_order([row for row in rows if (row["problem"] or row)["queue"] == "q1"])
