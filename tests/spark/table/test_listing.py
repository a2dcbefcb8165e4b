"""The files of a folder at one moment, while queues come and go and files are renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.spark.options import SourceFailed
from kestrel.spark.table.files import list_folder
from kestrel.spark.table.options import JournalLocation
from kestrel.spark.table.planned_file import PlannedFile
from tests.journal.handwritten import addx
from tests.spark.disks import LivelyDisk
from tests.tools.tool_processes import fill

A, B = addx(b"a"), addx(b"bb")


def place(folder: Path) -> JournalLocation:
    return JournalLocation("server", os.fsencode(folder))


def sizes(files: list[PlannedFile]) -> dict[bytes, int]:
    return {file.file_name: file.size for file in files}


def nothing() -> None:
    pass


def rotate(folder: Path, number: int, new: bytes = b"") -> Callable[[], None]:
    """Rotate as a server does: the current file gets a number, and a new one begins."""

    def rotating() -> None:
        (folder / "work").rename(folder / f"work.{number}")
        (folder / "work").write_bytes(new)

    return rotating


def test_unchanged_folder_is_listed_once(tmp_path: Path) -> None:
    fill(tmp_path, {"work": A, "work.5": B})
    calm, disk = LivelyDisk(), LivelyDisk()
    assert sizes(list_folder(disk, place(tmp_path))) == {b"work.5": len(B), b"work": len(A)}
    (tmp_path / "other").write_bytes(A)
    assert len(list_folder(calm, place(tmp_path))) == 3
    assert calm.listings == disk.listings


@pytest.mark.parametrize("at", range(8))
def test_file_rotated_at_any_listing_is_there_once(tmp_path: Path, at: int) -> None:
    fill(tmp_path, {"work": A, "other": A})
    disk = LivelyDisk(*[nothing] * at, rotate(tmp_path, 7, B))
    found = sizes(list_folder(disk, place(tmp_path)))
    before, after = {b"work": len(A)}, {b"work.7": len(A), b"work": len(B)}
    assert {name: size for name, size in found.items() if name != b"other"} in (before, after)
    assert b"other" in found


@pytest.mark.parametrize("at", range(8))
def test_queue_recreated_during_listing_is_old_or_new(
    tmp_path: Path, at: int
) -> None:
    fill(tmp_path, {"work.5": A, "work": A})

    def delete() -> None:
        (tmp_path / "work.5").unlink()
        (tmp_path / "work").unlink()

    def make() -> None:
        (tmp_path / "work").write_bytes(B)

    found = sizes(list_folder(LivelyDisk(*[nothing] * at, delete, make), place(tmp_path)))
    assert found in ({}, {b"work.5": len(A), b"work": len(A)}, {b"work": len(B)})


def test_file_packed_between_listing_and_opening_is_searched_again(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"work.{number}").write_bytes(A)
    (tmp_path / "work").write_bytes(A)

    def pack() -> None:
        (tmp_path / "work.1").unlink()
        (tmp_path / "work.2").write_bytes(B)

    def packing() -> None:
        disk.happenings = [pack]

    disk = LivelyDisk(nothing, packing)
    found = sizes(list_folder(disk, place(tmp_path)))
    assert found in ({b"work.2": len(B), b"work": len(A)}, {b"work.1": len(A), b"work.2": len(A), b"work": len(A)})


def test_changing_queues_do_not_delay_listing(tmp_path: Path) -> None:
    """A busy folder gets new queues at any time."""
    (tmp_path / "work").write_bytes(A)

    def come_and_go() -> None:
        (tmp_path / f"new{disk.listings}").write_bytes(A)
        (tmp_path / f"new{disk.listings - 3}").unlink(missing_ok=True)
        disk.happenings.append(come_and_go)

    disk = LivelyDisk(come_and_go)
    found = sizes(list_folder(disk, place(tmp_path)))
    assert found[b"work"] == len(A)
    assert disk.listings <= 12


def test_queue_missed_by_a_listing_is_found_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A)

    class Missing(LivelyDisk):
        def list_files(self, folder: bytes) -> list[bytes]:
            names = super().list_files(folder)
            return names if self.listings > 2 else []

    assert sizes(list_folder(Missing(), place(tmp_path))) == {b"work": len(A)}


def test_journal_renamed_all_the_time_is_named(tmp_path: Path) -> None:
    fill(tmp_path, {"calm": A, "work": A})

    def again() -> None:
        rotate(tmp_path, disk.listings)()
        disk.happenings.append(again)

    disk = LivelyDisk(again)
    with pytest.raises(SourceFailed, match=r"the files of work are being renamed all the time; try again"):
        list_folder(disk, place(tmp_path))


def test_unreadable_file_is_planned(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(A)

    class Bad(Disk):
        def read(self, descriptor: int, offset: int, size: int) -> bytes:
            raise OSError(5, "Input/output error")

    [file] = list_folder(Bad(), place(tmp_path))
    assert (file.size, file.sample) == (len(A), None)
