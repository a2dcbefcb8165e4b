"""Deleting all files of a queue: wherever the process ends, the queue is complete or gone."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.journal.fileset import QueueFiles, erase_deleted, files_of, mark_deleted
from kestrel.journal.records import REMOVE_RECORD, encode_item

EMPTY = encode_item(b"", 0, 0)
KEPT = encode_item(b"kept", 1, 0)
FILES = {
    "work.1.pack": EMPTY * 3 + KEPT,
    "work.2": REMOVE_RECORD * 2,
    "work": REMOVE_RECORD,
}
"""A pack with empty items in place of those that later files remove."""


class EndsAfter(Disk):
    """A disk on which the process ends after that many changes."""

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
        raise AssertionError("a deletion creates no file")


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "other.5").write_bytes(KEPT)
    return bytes(tmp_path)


def numbers() -> count[int]:
    return count(10)


def files_in(folder: bytes) -> QueueFiles:
    return files_of(b"work", Disk().list_files(folder))


def delete(disk: Disk, folder: bytes) -> None:
    mark_deleted(disk, folder, b"work", numbers().__next__)
    erase_deleted(disk, folder, b"work")


def test_deletion_erases_only_the_files_of_the_queue(folder: bytes) -> None:
    delete(Disk(), folder)
    assert Disk().list_files(folder) == [b"other.5"]


@pytest.mark.parametrize("changes", range(4))
def test_end_after_any_change_leaves_all_or_nothing(folder: bytes, changes: int) -> None:
    with pytest.raises(SystemExit):
        delete(EndsAfter(changes), folder)
    files = files_in(folder)
    if not changes:
        live_files = [(Path(folder.decode()) / file.file_name.decode()).read_bytes() for file in files.live_files()]
        assert not files.deleted and live_files == list(FILES.values())
    else:
        assert not files.has_items
        erase_deleted(Disk(), folder, b"work")
        assert Disk().list_files(folder) == [b"other.5"]


@pytest.mark.parametrize("names", [["work.1"], ["work.1", "work.2.pack"], ["work.1.pack", "work.2"]], ids=" ".join)
def test_queue_without_current_file_is_deleted_by_renaming_its_newest(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(KEPT)
    mark_deleted(EndsAfter(2), bytes(tmp_path), b"work", numbers().__next__)
    assert not files_in(bytes(tmp_path)).has_items
    erase_deleted(Disk(), bytes(tmp_path), b"work")
    assert not list(tmp_path.iterdir())


def test_queue_without_files_needs_no_mark(tmp_path: Path) -> None:
    delete(Disk(), bytes(tmp_path))
    assert not list(tmp_path.iterdir())


def test_new_queue_with_the_name_is_left_alone(folder: bytes) -> None:
    mark_deleted(Disk(), folder, b"work", numbers().__next__)
    path = Path(folder.decode())
    (path / "work").write_bytes(KEPT)
    (path / "work.99").write_bytes(KEPT)
    assert files_in(folder).in_replay_order() == [b"work.99", b"work"]
    erase_deleted(Disk(), folder, b"work")
    assert sorted(Disk().list_files(folder)) == [b"other.5", b"work", b"work.99"]


def test_failed_mark_leaves_the_queue_unchanged(folder: bytes) -> None:
    class NoRename(Disk):
        def rename(self, old: bytes, new: bytes) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        mark_deleted(NoRename(), folder, b"work", numbers().__next__)
    left = {name.decode(): (Path(folder.decode()) / name.decode()).read_bytes() for name in Disk().list_files(folder)}
    assert left == {**FILES, "other.5": KEPT}
