"""``kestrel.spark.histories`` on Spark: the same as journal after journal without it, however Spark deals them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kestrel.spark.item_histories import histories
from tests.journal.handwritten import REMOVE, addx, confirm, open_
from tests.scroll.handwritten import READER, WRITER, put, read_head
from tests.spark.tables import histories_in
from tests.spark.times import collected


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["server"], row["queue"], row["file"], row["offset"]))


def test_all_journals_of_all_servers_have_theirs_whole_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(5):
        folder = tmp_path / f"server{number}"
        folder.mkdir()
        for queue in range(3):
            items = b"".join(addx(b"%d" % each, each) + (REMOVE if each % 3 else b"") for each in range(1, 20))
            (folder / f"q{queue}.{5 + number}").write_bytes(items + open_(1))
            (folder / f"q{queue}").write_bytes(addx(b"last", 30) + confirm(1))
        (folder / "s.1").write_bytes(WRITER + b"".join(put(each, b"%d" % each) for each in range(1, 9)))
        (folder / "s.read.a").write_bytes(READER + read_head(number))
        (folder / "s.read.b").write_bytes(READER + read_head(3))
    records = spark.read.format("kestrel").option("partitionBytes", "100").load(str(tmp_path / "*"))
    rows = [collected(row) for row in histories(records, max_items=7).collect()]
    assert in_order(rows) == in_order(histories_in(tmp_path / "*", limits=7))
    assert len(rows) == 5 * (3 * 20 + 2 * 8)
