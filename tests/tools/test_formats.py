"""Journals and scrolls are told apart by name, or by the first bytes where the name is not enough."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.testing.faults import FaultyDisk
from kestrel.tools.files.formats import Sorter
from tests.journal.handwritten import REMOVE, addx
from tests.scroll.handwritten import WRITER, put
from tests.tools.tool_processes import fill

JOURNAL, SCROLL, NOTHING = addx(b"a"), WRITER + put(1, b"a"), b""


def scrolls_of(folder: Path, disk: Disk | None = None) -> set[str]:
    """Return the files of scrolls. All others must be sorted to the journals."""
    names = os.listdir(os.fsencode(folder))
    of_journals, of_scrolls = Sorter(disk or Disk(), os.fsencode(folder)).sort(names)
    assert sorted(of_journals + of_scrolls) == sorted(names)
    return {os.fsdecode(name) for name in of_scrolls}


@pytest.mark.parametrize("contents", [JOURNAL, SCROLL, NOTHING])
@pytest.mark.parametrize(
    ("neighbour", "is_scroll"),
    [("work", False), ("work.7.pack", False), ("work.read.", True), ("work.read.:own", True), ("work.read.x", True)],
)
def test_numbered_file_belongs_to_its_neighbour(
    tmp_path: Path, neighbour: str, is_scroll: bool, contents: bytes
) -> None:
    fill(tmp_path, {neighbour: b"", "work.1": contents})
    assert scrolls_of(tmp_path) == ({neighbour, "work.1"} if is_scroll else set())


@pytest.mark.parametrize("beside", [[], ["work", "work.read.x"], ["work~~1"], ["other", "other2.read.x"]])
def test_numbered_file_without_neighbours_is_sorted_by_its_first_bytes(tmp_path: Path, beside: list[str]) -> None:
    fill(tmp_path, dict.fromkeys(beside, b""))
    fill(tmp_path, {"work.1": JOURNAL, "work.2": SCROLL, "work.3": NOTHING, "work.4": WRITER[:3], "work.5": REMOVE})
    assert scrolls_of(tmp_path) == {"work.2", *(name for name in beside if ".read." in name)}


def test_temporary_files_are_sorted_by_name(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(["work~~1", "work.1~~2", "work.read.x~~3", "foreign.txt", "a.read.b.c"], b""))
    assert scrolls_of(tmp_path) == {"work.1~~2", "work.read.x~~3"}


def test_unreadable_file_is_a_journal_until_read_again(tmp_path: Path) -> None:
    fill(tmp_path, {"work.1": SCROLL})
    disk = FaultyDisk()
    disk.fail("read", errno.EIO, times=1)
    assert scrolls_of(tmp_path, disk) == set()
    assert disk.open_descriptors == set()
    fill(tmp_path, {"work.1": WRITER[:2]})
    sorter = Sorter(disk, os.fsencode(tmp_path))
    assert sorter.sort([b"work.1"]) == ([b"work.1"], [])
    fill(tmp_path, {"work.1": WRITER})
    assert sorter.sort([b"work.1"]) == ([], [b"work.1"])
    (tmp_path / "work.1").unlink()
    assert sorter.sort([b"work.1"]) == ([], [b"work.1"]), "it was one"
    assert Sorter(disk, os.fsencode(tmp_path)).sort([b"work.1"]) == ([b"work.1"], [])
