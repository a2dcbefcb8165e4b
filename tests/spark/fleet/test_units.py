"""The division of many folders into units and tasks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.spark.fleet.units import (
    Unit,
    folder_units,
    folders_of,
    map_units_by_folder,
    queue_units,
    reader_units,
)
from kestrel.spark.fleet.verify import verify_unit
from kestrel.spark.options import SourceFailed
from kestrel.spark.task_map import assign_tasks
from kestrel.testing.faults import FaultyDisk
from kestrel.tools.files.folder import Found, FoundJournal, FoundScroll
from tests.journal.handwritten import addx
from tests.scroll.handwritten import READER, WRITER, put, read_done, read_head
from tests.spark.fleet.folders import places
from tests.tools.tool_processes import fill

SCROLL = {
    "news.1000": WRITER + put(1, b"one"),
    "news.read.a": READER + read_head(0) + read_done(),
    "news.read.b": READER + read_head(1) + read_done(),
}


def brief(units: list[Unit]) -> list[tuple[str, Found | tuple[bytes, ...] | str]]:
    return [(unit.server, unit.found or ("rest" if unit.is_rest else unit.names)) for unit in units]


@pytest.fixture
def two(tmp_path: Path) -> str:
    fill(tmp_path / "web1", {"work": addx(b"x"), **SCROLL})
    fill(tmp_path / "web2", {"work": addx(b"x"), "mail": b""})
    (tmp_path / "README").write_text("no folder")
    return str(tmp_path / "*")


def test_verification_units_are_journals_scrolls_and_rest(two: str) -> None:
    units = queue_units(Disk(), places(two), [])
    assert brief(units) == [
        ("web1", FoundScroll(b"news")),
        ("web1", FoundJournal(b"work")),
        ("web1", "rest"),
        ("web2", FoundJournal(b"mail")),
        ("web2", FoundJournal(b"work")),
        ("web2", "rest"),
    ]
    assert [unit.number for unit in units] == [0, 1, 2, 3, 4, 5]


def test_export_has_a_unit_for_each_reader_of_a_scroll(two: str) -> None:
    units = reader_units(Disk(), folders_of([two], "all"), [b"work", b"news+b"])
    assert brief(units) == [
        ("all", FoundJournal(b"work")),
        ("all", FoundScroll(b"news", (b"b",))),
        ("all", FoundJournal(b"work")),
    ]
    assert len(reader_units(Disk(), places(two), [])) == 5


def test_pack_has_unit_per_folder_with_selected_queue(two: str) -> None:
    units = folder_units(Disk(), places(two), [b"mail"])
    assert brief(units) == [("web2", (b"mail",))]
    assert len(folder_units(Disk(), places(two), [])) == 2


def test_missing_queue_is_named(two: str) -> None:
    with pytest.raises(SourceFailed, match="no folder has a queue missing: kestrel-qdump -q"):
        queue_units(Disk(), places(two), [b"work", b"missing"])


def test_file_is_no_folder(two: str, tmp_path: Path) -> None:
    with pytest.raises(SourceFailed, match="README is a file: name the folder that it is in"):
        folders_of([str(tmp_path / "README")], None)
    with pytest.raises(SourceFailed, match="there is no folder among"):
        folders_of([str(tmp_path / "READ*")], None)


def test_folder_that_cannot_be_read_is_one_unit(two: str) -> None:
    disk = FaultyDisk()
    disk.fail("list", errno.EIO, times=1)
    units = queue_units(disk, places(two), [b"work"])
    assert brief(units) == [("web1", (b"work",)), ("web2", FoundJournal(b"work"))]


def test_task_lists_a_folder_once_for_all_its_units(tmp_path: Path) -> None:
    for server in ("web1", "web2"):
        fill(tmp_path / server, {name: addx(b"x") for name in "abc"})
        os.utime(tmp_path / server, (1, 1))
    units = queue_units(Disk(), places(tmp_path / "*"), [])
    disk = FaultyDisk()
    rows = list(map_units_by_folder(units[::2] + units[1::2], lambda unit, folder: verify_unit(unit, folder, 1), disk))
    assert len(rows) == 6
    assert disk.calls.count("list") == 2


def test_largest_units_go_first_to_smallest_task() -> None:
    units = [Unit(number, "s", b"/", cost=cost) for number, cost in enumerate([1, 1, 9, 3, 3, 1])]
    shared = [(task, unit.number) for task, unit in assign_tasks(units, 3)]
    assert shared == [(0, 2), (1, 3), (2, 4), (1, 0), (2, 1), (1, 5)]
    assert assign_tasks([], 3) == []
    assert {task for task, _ in assign_tasks(units, 100)} == set(range(6))
