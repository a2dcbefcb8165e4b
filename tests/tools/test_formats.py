"""Which files are Kestrel's and which are scrolls: the names say it, or the first bytes where a name does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.testing.faults import FaultyDisk
from kestrel.tools.files.formats import Format, Sorter, format_of
from tests.journal.handwritten import REMOVE, addx
from tests.scroll.handwritten import READER, WRITER, put
from tests.tools.tool_processes import fill

JOURNAL, SCROLL, NOTHING = addx(b"a"), WRITER + put(1, b"a"), b""


def scrolls_of(folder: Path, disk: Disk | None = None) -> set[str]:
    """The files that are those of scrolls; all others must be among the rest."""
    names = os.listdir(os.fsencode(folder))
    of_journals, of_scrolls = Sorter(disk or Disk(), os.fsencode(folder)).sort(names)
    assert sorted(of_journals + of_scrolls) == sorted(names)
    return {os.fsdecode(name) for name in of_scrolls}


@pytest.mark.parametrize("contents", [JOURNAL, SCROLL, NOTHING])
@pytest.mark.parametrize("beside", ["work", "work.7.pack"])
def test_beside_a_current_file_or_a_pack_a_numbered_file_is_kestrels(
    tmp_path: Path, beside: str, contents: bytes
) -> None:
    fill(tmp_path, {beside: b"", "work.1": contents})
    assert scrolls_of(tmp_path) == set()


@pytest.mark.parametrize("contents", [JOURNAL, SCROLL, NOTHING])
@pytest.mark.parametrize("beside", ["work.read.", "work.read.:own", "work.read.x"])
def test_beside_a_reader_file_a_numbered_file_is_a_scrolls(tmp_path: Path, beside: str, contents: bytes) -> None:
    fill(tmp_path, {beside: b"", "work.1": contents})
    assert scrolls_of(tmp_path) == {beside, "work.1"}


@pytest.mark.parametrize("beside", [[], ["work", "work.read.x"], ["work~~1"], ["other", "other2.read.x"]])
def test_elsewhere_its_first_bytes_say_whose_it_is(tmp_path: Path, beside: list[str]) -> None:
    fill(tmp_path, dict.fromkeys(beside, b""))
    fill(tmp_path, {"work.1": JOURNAL, "work.2": SCROLL, "work.3": NOTHING, "work.4": WRITER[:3], "work.5": REMOVE})
    assert scrolls_of(tmp_path) == {"work.2", *(name for name in beside if ".read." in name)}


def test_temporary_files_are_told_apart_by_their_names(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(["work~~1", "work.1~~2", "work.read.x~~3", "foreign.txt", "a.read.b.c"], b""))
    assert scrolls_of(tmp_path) == {"work.1~~2", "work.read.x~~3"}


def test_a_file_that_cannot_be_looked_into_is_kestrels_and_one_that_grows_is_looked_into_again(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("contents", "format_"),
    [
        (JOURNAL, Format.JOURNAL),
        (NOTHING, Format.JOURNAL),
        (REMOVE, Format.JOURNAL),
        (SCROLL, Format.WRITER),
        (READER, Format.READER),
        (WRITER[:3], Format.NEITHER),
        (b"\x0a", Format.NEITHER),
        (b"\x7fELF", Format.NEITHER),
    ],
)
def test_a_file_by_itself_is_what_its_first_bytes_say(tmp_path: Path, contents: bytes, format_: Format) -> None:
    fill(tmp_path, {"any name.txt": contents})
    assert format_of(Disk(), os.fsencode(tmp_path / "any name.txt")) is format_
