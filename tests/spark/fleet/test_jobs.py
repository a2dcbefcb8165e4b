"""kestrel-fleet as a whole, with the tasks of Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kestrel.spark.fleet.export import ExportFormat, ItemSelection, export, items_of
from kestrel.spark.fleet.importing import import_items, read_items
from kestrel.spark.fleet_cli import main
from kestrel.spark.options import SourceFailed
from kestrel.tools.tool_runner import ToolFailed
from tests.journal.handwritten import REMOVE, addx, open_, save_xid, unremove
from tests.journal.restarts import files_of, restarted_errors, restarted_items
from tests.spark.fleet.folders import NOW_MS, fleet, rows_of
from tests.spark.times import at, collected
from tests.tools.tool_processes import fill

ODD = [b"", b"plain", "caf\xe9 \u2028 \U0001f95d\0".encode(), b'"\\\n\r\t', b"\xff\x00", b"\xed\xa0\x80", b"x" * 3000]

FILES = {
    "work": b"".join(addx(data, 7 + place, place) for place, data in enumerate(ODD)),
    "caf\xe9+<script>": addx(b"a") + addx(b"b") + open_(1) + open_(2) + save_xid(3) + unremove(2),
    "empty": addx(b"x") + REMOVE,
}


def plain(rows: list[Any]) -> list[dict[str, Any]]:
    """Return Spark's rows in the form of `rows_of`, in order."""
    dicts = [collected(row) for row in rows]
    for row in dicts:
        row["data"] = bytes(row["data"])
    return sorted(dicts, key=lambda row: (row["server"], row["queue"], row["position"]))


def without(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


@pytest.mark.parametrize("form", ExportFormat)
def test_imported_items_are_those_that_were_exported(
    spark: SparkSession, tmp_path: Path, form: ExportFormat
) -> None:
    fill(tmp_path / "old", FILES)
    out, new = str(tmp_path / "out"), tmp_path / "new"
    done = export(spark, [str(tmp_path / "old")], out, form=form, server="web1", now_ms=NOW_MS)
    assert (done.items, done.remarks) == (len(ODD) + 2, [])
    made = import_items(spark, read_items(spark, out), str(new), server="web1", now_ms=NOW_MS)
    assert [(each.queue, each.items) for each in made] == [("caf\xe9+<script>", 2), ("work", len(ODD))]
    assert not list(new.glob("*~~*"))
    assert without(rows_of(new), "server", "folder") == without(rows_of(tmp_path / "old"), "server", "folder")
    assert [each.bytes for each in made] == [len(files_of(new)[each.queue]) for each in made]
    assert restarted_items(new, b"work") == [(data, 7 + place, place) for place, data in enumerate(ODD)]
    assert restarted_errors(new, "caf\xe9+<script>".encode("latin-1")) == [0, 3]


def test_times_of_an_export_of_version_1_0_are_imported(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text('{"queue": "work", "add_ms": 7, "expiry_ms": 9007199254740993, "data": "x"}')
    import_items(spark, read_items(spark, str(tmp_path / "old.jsonl")), str(tmp_path / "new"))
    assert restarted_items(tmp_path / "new") == [(b"x", 7, 9007199254740993)]


@pytest.mark.parametrize("form", ExportFormat)
def test_export_can_be_read_only_by_its_owner(spark: SparkSession, tmp_path: Path, form: ExportFormat) -> None:
    fill(tmp_path / "old", {"work": addx(b"secret")})
    out = tmp_path / "out"
    export(spark, [str(tmp_path / "old")], str(out), form=form)
    assert out.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}


def test_fleet_export_has_all_items_and_reports_damage(
    spark: SparkSession, tmp_path: Path
) -> None:
    pattern = fleet(tmp_path)
    done = export(spark, [pattern], str(tmp_path / "out"), now_ms=NOW_MS)
    expected = rows_of(pattern)
    items = [row for row in expected if row["problem"] is None]
    order = {"server": "", "queue": "", "position": 0}
    items.sort(key=lambda row: [row[name] for name in order])
    assert plain(spark.read.parquet(str(tmp_path / "out")).collect()) == without(items, "problem")
    problems = [row["problem"] for row in expected if row["problem"] is not None]
    assert [remark._asdict() for remark in done.remarks] == without(problems, "place")
    assert done.items == len(items) > 400
    assert {each.server: each.items for each in done.servers if each.items} == Counter(row["server"] for row in items)
    assert sum(each.bytes for each in done.servers) == sum(len(row["data"]) for row in items)
    with pytest.raises(SourceFailed, match="already exists: name another folder"):
        export(spark, [pattern], str(tmp_path / "out"))


def test_exported_items_are_a_table(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, {"work": addx(b"a") + REMOVE + addx(b"b")})
    added = items_of(spark, [str(tmp_path)], which=ItemSelection.ADDED, queues=[b"work"])
    assert [(row.position, bytes(row.data)) for row in added.orderBy("position").collect()] == [(0, b"a"), (1, b"b")]


def test_imported_items_are_in_the_order_of_their_times(spark: SparkSession, tmp_path: Path) -> None:
    items = spark.createDataFrame(
        [("a", at(30), "late"), ("a", at(10), "early"), ("b", None, "no time")],
        "queue string, add_time timestamp, data string",
    )
    import_items(spark, items, str(tmp_path / "new"), now_ms=NOW_MS)
    assert restarted_items(tmp_path / "new", b"a") == [(b"early", 10, 0), (b"late", 30, 0)]
    assert restarted_items(tmp_path / "new", b"b") == [(b"no time", NOW_MS, 0)]


def test_failed_import_leaves_no_queue(spark: SparkSession, tmp_path: Path) -> None:
    new = tmp_path / "new"
    columns = "queue string, position int, data string"
    twice = spark.createDataFrame([("a", 0, "x"), ("b", 0, "y"), ("b", 0, "z")], columns)
    with pytest.raises(ToolFailed, match="nothing is imported: queue b: two items have the position 0"):
        import_items(spark, twice, str(new))
    assert files_of(new) == {}
    fill(new, {"a": addx(b"there")})
    once = spark.createDataFrame([("a", 0, "x"), ("b", 0, "y")], columns)
    with pytest.raises(ToolFailed, match="has the queue a already"):
        import_items(spark, once, str(new))
    assert files_of(new) == {"a": addx(b"there")}
    import_items(spark, once, str(new), queues=[b"b"], now_ms=1)
    assert files_of(new) == {"a": addx(b"there"), "b": addx(b"y")}


Fleet = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Fleet:
    """Run kestrel-fleet in this process, with the Spark of the tests. Return its exit status, output and remarks."""

    def run_here(*arguments: object) -> tuple[int, str, str]:
        return main([str(each) for each in arguments]), *capsys.readouterr()

    return run_here


def test_every_command_reports_damage_and_does_the_rest(command: Fleet, tmp_path: Path) -> None:
    """tests/spark/test_docs.py has the output of all commands without damage."""
    fill(tmp_path / "data" / "web1", {"work": addx(b"a") + REMOVE + addx(b"b")})
    fill(tmp_path / "data" / "web2", {"mail": addx(b"c") + b"\xee"})
    pattern = tmp_path / "data" / "*"
    status, out, said = command("verify", "--json", pattern)
    assert (status, [json.loads(line)["state"] for line in out.splitlines()]) == (1, ["ok", "damaged"])
    damage = f"kestrel-fleet: {tmp_path}/data/web2: damaged: mail, offset 22: unknown opcode 238;"
    assert said == f"{damage} 1 byte from there on cannot be read\n"
    out_folder, new = tmp_path / "items", tmp_path / "new"
    status, out, said = command("export", pattern, "--out", out_folder, "--format", "jsonl")
    assert (status, out.splitlines()[-1]) == (1, f"2 items in {out_folder}")
    assert said.startswith(damage)
    assert command("import", out_folder, "--into", new, "--queue", "work") == (0, f"1 item in 1 queue of {new}\n", "")
    assert restarted_items(new) == [(b"b", 1, 0)]
    status, out, said = command("import", out_folder, "--into", new)
    assert (status, out) == (2, "")
    assert "has the queue work already" in said


@pytest.mark.parametrize(
    "bad",
    [
        '{"queue": "work", "server": "web1", "data": "SECRET',
        '{"queue": "work", "server": "web1", "data": "SECRET", "expiry_time": "soon"}',
        '{"queue": "work", "server": "web1", "base64": "SECRET!"}',
    ],
)
def test_line_that_is_no_item_is_refused_and_not_shown(command: Fleet, tmp_path: Path, bad: str) -> None:
    good = '{"queue": "work", "server": "web2", "data": "SECRET"}'
    (tmp_path / "items.json").write_text(f"{good}\n{bad}\n")
    status, out, said = command("import", tmp_path / "items.json", "--into", tmp_path / "new", "--server", "web1")
    assert (status, out) == (2, "")
    assert "1 line of the items cannot be read" in said or "queue work: 1 of its items have no data" in said
    assert "SECRET" not in said
    assert not (tmp_path / "new").exists()
