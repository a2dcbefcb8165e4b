"""The exported items of a folder equal those of kestrel-qdump -Q and -A."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kestrel.disk.files import Disk
from kestrel.spark.fleet import export
from kestrel.spark.fleet.export import ItemSelection, export_rows
from kestrel.spark.fleet.units import Unit, reader_units
from kestrel.testing.faults import FaultyDisk
from kestrel.tools import qdump
from kestrel.tools.files.folder import Folder, FoundJournal
from tests.journal.handwritten import REMOVE, add, addx, open_, save_xid, unremove
from tests.journal.restarts import files_of, restarted_errors, restarted_items
from tests.scroll.handwritten import READER, WRITER, put, read_done, read_head
from tests.spark.disks import CountingDisk
from tests.spark.fleet.folders import NOW_MS, RECORDED, name_of, places, rows_of, without_totals
from tests.spark.times import at, ms_of
from tests.tools.tool_processes import fill

Qdump = Callable[..., tuple[int, bytes, list[str]]]

OPTIONS = {ItemSelection.QUEUED: "-Q", ItemSelection.ADDED: "-A"}


def alone(unit: Unit, which: ItemSelection, disk: Disk | None = None) -> Iterator[pa.RecordBatch]:
    """Return the rows of one unit, without Spark."""
    return export_rows(unit, Folder(disk or Disk(), unit.folder), which, NOW_MS)


@pytest.fixture
def dump(capfdbinary: pytest.CaptureFixture[bytes]) -> Qdump:
    """Run kestrel-qdump in this process. Return its exit status, output and remarks."""

    def run_here(*arguments: object) -> tuple[int, bytes, list[str]]:
        status = qdump.main([str(each) for each in arguments])
        out, said = capfdbinary.readouterr()
        return status, out, [line.removeprefix("kestrel-qdump: ") for line in said.decode().splitlines()]

    return run_here


def by_queue(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    items = [row for row in rows if row["problem"] is None]
    return {queue: list(group) for queue, group in groupby(items, lambda row: row["queue"])}


@pytest.mark.parametrize("which", ItemSelection)
@pytest.mark.parametrize("recorded", RECORDED, ids=name_of)
def test_items_of_every_recorded_queue_are_those_of_qdump(
    recorded: Path, which: ItemSelection, dump: Qdump
) -> None:
    queues = by_queue(rows_of(recorded, which=which))
    units = reader_units(Disk(), places(recorded), [])
    printed = b""
    for queue, rows in queues.items():
        status, out, _ = dump(OPTIONS[which], "--queue", queue, recorded)
        assert b"".join(row["data"] + b"\n" for row in rows) == out
        assert [row["position"] for row in rows] == list(range(len(rows)))
        printed += out
    if which is ItemSelection.QUEUED:
        status, out, said = dump("-Q", recorded)
        assert out == printed
        problems = [row["problem"] for row in rows_of(recorded) if row["problem"] is not None]
        sentences = {each["sentence"].removeprefix(f"{recorded}: ") for each in problems}
        assert sentences == set(said)
        assert any(each["is_complaint"] for each in problems) == status
    assert len(units) >= len(queues)


@pytest.mark.parametrize("recorded", [path for path in RECORDED if "journal" in path.parts[-4]], ids=name_of)
def test_times_and_errors_are_those_after_a_restart(recorded: Path, tmp_path: Path) -> None:
    fill(tmp_path, files_of(recorded))
    for queue, rows in by_queue(rows_of(recorded)).items():
        name = queue.encode("latin-1")
        items = [(row["data"], ms_of(row["add_time"]), ms_of(row["expiry_time"]) or 0) for row in rows]
        assert items == restarted_items(tmp_path, name)
        assert [row["errors"] for row in rows] == restarted_errors(tmp_path, name)


def test_item_without_an_add_time_has_none(tmp_path: Path) -> None:
    fill(tmp_path, {"work": add(b"old", 7) + addx(b"new", 5, 6)})
    rows = rows_of(tmp_path, which=ItemSelection.ADDED)
    assert [(row["data"], row["add_time"], row["expiry_time"]) for row in rows] == [
        (b"old", None, at(7000)),
        (b"new", at(5), at(6)),
    ]
    assert [row["add_time"] for row in rows_of(tmp_path)] == [at(NOW_MS), at(5)]


def test_each_reader_of_a_scroll_has_its_own_errors(tmp_path: Path) -> None:
    recorded = next(path for path in RECORDED if path.parent.name == "L38_error_count")
    (row,) = rows_of(recorded)
    assert (row["queue"], row["errors"]) == ("work", 7)


def test_queue_with_an_unknown_name_has_null(tmp_path: Path) -> None:
    fill(tmp_path, {"odd:name.1000": WRITER + put(1, b"x"), "odd:name.read.": READER + read_head(0) + read_done()})
    item, problem = rows_of(tmp_path)
    assert (item["queue"], item["data"]) == (None, b"x")
    assert problem["problem"]["sentence"].endswith("the name of one of its queues is unknown")
    assert not problem["problem"]["is_complaint"]


def test_text_is_text_and_other_data_is_base64(tmp_path: Path) -> None:
    items = [b"", b"plain", "caf\xe9 \u2028 \U0001f95d\0".encode(), b'"\\\n\r', b"\xff", b"caf\xe9", b"\xed\xa0\x80"]
    fill(tmp_path, {"work": b"".join(map(addx, items))})
    rows = rows_of(tmp_path, is_text=True)
    assert [row["data"] is None for row in rows] == [False, False, False, False, True, True, True]
    back = [base64.b64decode(row["base64"]) if row["data"] is None else row["data"].encode() for row in rows]
    assert back == items


def test_batches_are_limited_in_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_ROWS", 3)
    monkeypatch.setattr(export, "MOST_BYTES", 100)
    sizes = [1, 1, 1, 1, 200, 60, 60]
    fill(tmp_path, {"work": b"".join(addx(b"x" * size) for size in sizes)})
    batches = list(alone(Unit(0, "s", bytes(tmp_path), FoundJournal(b"work")), ItemSelection.QUEUED))
    assert [batch.num_rows for batch in batches] == [3, 2, 2, 1]  # the last row has the totals
    assert [row["position"] for row in without_totals(batches)] == list(range(7))


def test_queue_is_not_held_in_memory(tmp_path: Path) -> None:
    """A batch is returned before the next one is read."""
    fill(tmp_path, {"work": b"".join(addx(b"x" * 1000) for _ in range(20_000))})
    disk = CountingDisk()
    batches = alone(Unit(0, "s", bytes(tmp_path), FoundJournal(b"work")), ItemSelection.ADDED, disk)
    next(batches)
    assert disk.bytes_read < 8 * 1024 * 1024
    batches.close()  # type: ignore[attr-defined]


def test_unreadable_queue_is_a_problem_and_others_continue(tmp_path: Path) -> None:
    fill(tmp_path, {"a": addx(b"x"), "b": addx(b"y")})
    disk = FaultyDisk()
    disk.fail("read", errno.EIO, times=1)
    rows = without_totals(alone(Unit(7, "s", bytes(tmp_path)), ItemSelection.QUEUED, disk))
    assert [row["data"] for row in rows] == [b"y", None]
    problem = rows[1]["problem"]
    assert (problem["place"], problem["is_complaint"]) == (7, True)
    assert problem["sentence"].startswith(f"{tmp_path}: queue a: cannot be read: Input/output error")


def test_folder_as_one_unit_separates_the_items_of_its_queues(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            "b": addx(b"1") + addx(b"2") + open_(1) + save_xid(3) + unremove(1),
            "a": addx(b"3") + REMOVE,
            "c": addx(b"4"),
        },
    )
    rows = without_totals(alone(Unit(0, "s", bytes(tmp_path)), ItemSelection.QUEUED))
    assert [(row["queue"], row["position"], row["data"], row["errors"]) for row in rows] == [
        ("b", 0, b"1", 3),
        ("b", 1, b"2", 0),
        ("c", 0, b"4", 0),
    ]


def test_deleted_queue_is_a_problem(tmp_path: Path) -> None:
    fill(tmp_path, {"work": addx(b"x")})
    (unit,) = reader_units(Disk(), places(tmp_path), [])
    os.unlink(tmp_path / "work")
    (row,) = without_totals(alone(unit, ItemSelection.QUEUED))
    assert "there is no queue work" in row["problem"]["sentence"]
