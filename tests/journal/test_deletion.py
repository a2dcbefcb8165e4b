"""Deleting a queue of several files: wherever it ends, the queue is as it was, or there is none."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.journal.deletion import erase_deleted, mark_deleted, mark_of_deleted
from kestrel.journal.fileset import files_of
from kestrel.journal.records import REMOVE_RECORD, encode_item

EMPTY = encode_item(b"", 0, 0)
KEPT = encode_item(b"kept", 1, 0)
FILES = {
    "work.1.pack": EMPTY * 3 + KEPT,
    "work.2": REMOVE_RECORD * 2,
    "work": REMOVE_RECORD,
}
"""A pack in which empty items stand for those that later files remove."""


class EndsAfter(Disk):
    """A process that ends after so many changes of the disk."""

    def __init__(self, changes: int) -> None:
        self._left = changes

    def _change(self) -> None:
        if not self._left:
            raise SystemExit
        self._left -= 1

    def rename(self, old: bytes, new: bytes) -> None:
        self._change()
        super().rename(old, new)

    def erase(self, path: bytes) -> None:
        self._change()
        super().erase(path)

    def open_append(self, path: bytes) -> int:
        self._change()
        return super().open_append(path)


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "other.5").write_bytes(KEPT)
    return bytes(tmp_path)


def numbers() -> count[int]:
    return count(10)


def mark_in(folder: bytes) -> int | None:
    return mark_of_deleted(Disk(), folder, files_of(b"work", Disk().list_files(folder)))


def delete(disk: Disk, folder: bytes) -> None:
    erase_deleted(disk, folder, b"work", mark_deleted(disk, folder, b"work", numbers().__next__))


def test_nothing_is_left_of_it_and_others_are_left_alone(folder: bytes) -> None:
    delete(Disk(), folder)
    assert Disk().list_files(folder) == [b"other.5"]


@pytest.mark.parametrize("changes", range(6))
def test_an_end_after_each_change_leaves_all_of_it_or_none(folder: bytes, changes: int) -> None:
    with pytest.raises(SystemExit):
        delete(EndsAfter(changes), folder)
    files = files_of(b"work", Disk().list_files(folder))
    mark = mark_in(folder)
    if changes < 2:
        counting = [(Path(folder.decode()) / file.file_name.decode()).read_bytes() for file in files.counting()]
        assert mark is None and counting == list(FILES.values())
    else:
        assert mark is not None
        erase_deleted(Disk(), folder, b"work", mark)
        assert Disk().list_files(folder) == [b"other.5"]


def test_a_queue_of_that_name_that_comes_meanwhile_is_left_alone(folder: bytes) -> None:
    mark = mark_deleted(Disk(), folder, b"work", numbers().__next__)
    path = Path(folder.decode())
    (path / "work").write_bytes(KEPT)
    (path / "work.99").write_bytes(KEPT)
    assert mark_in(folder) is None
    erase_deleted(Disk(), folder, b"work", mark)
    assert sorted(Disk().list_files(folder)) == [b"other.5", b"work", b"work.99"]


def test_a_mark_that_cannot_be_made_leaves_the_queue_as_it_was(folder: bytes) -> None:
    class FullDisk(Disk):
        def open_append(self, path: bytes) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        mark_deleted(FullDisk(), folder, b"work", numbers().__next__)
    left = {name.decode(): (Path(folder.decode()) / name.decode()).read_bytes() for name in Disk().list_files(folder)}
    assert left == {**FILES, "other.5": KEPT}


@pytest.mark.parametrize(
    "names",
    [["work"], ["work.1", "work.2"], ["work.3.pack", "work"], ["work.3.pack", "work.4"]],
    ids=" ".join,
)
def test_no_other_queue_counts_as_deleted(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert mark_in(bytes(tmp_path)) is None
