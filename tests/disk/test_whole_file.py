"""A file that is replaced as a whole: after any failure it has its old or its new contents."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from kestrel.disk.files import AtomicFile, Disk
from kestrel.testing.faults import FaultyDisk, ProcessDied

OLD = b"what it held"
NEW = b"what is to take its place, and is longer"

CHANGING = ["open", "write", "sync", "rename"]
"""The operations of a write before the new contents replace the old."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file"


def whole_file(path: Path, disk: Disk | None = None) -> AtomicFile:
    return AtomicFile(disk or Disk(), os.fsencode(path))


def faulty_disk(path: Path) -> FaultyDisk:
    """Return a disk on which everything in the folder is synced."""
    disk = FaultyDisk()
    disk.medium.know(os.fsencode(path.parent))
    return disk


def held_after_a_power_failure(disk: FaultyDisk, path: Path, copy: Path) -> bytes | None:
    """Return the contents after a power failure, or None if there is no file."""
    disk.medium.copy(os.fsencode(path.parent), os.fsencode(copy))
    kept = copy / path.name
    return kept.read_bytes() if kept.exists() else None


def operations_of_a_write(path: Path) -> int:
    disk = FaultyDisk()
    whole_file(path, disk).write(b"counted")
    return len(disk.calls)


# Reads and writes.


def test_file_has_the_contents_of_the_last_write(path: Path) -> None:
    file = whole_file(path)
    for data in (OLD, NEW, b"", b"short", bytes(range(256)) * 100):
        file.write(data)
        assert file.read(1 << 20) == path.read_bytes() == data
        assert whole_file(path).read(1 << 20) == data


def test_read_returns_at_most_the_requested_bytes(path: Path) -> None:
    file = whole_file(path)
    file.write(b"0123456789")
    assert file.read(4) == b"0123"
    assert file.read(10) == b"0123456789"
    assert file.read(11) == b"0123456789"


def test_missing_file_is_reported(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        whole_file(path).read(10)
    path.parent.mkdir()
    with pytest.raises(FileNotFoundError):
        whole_file(path).read(10)


def test_special_file_cannot_be_read_and_is_not_missing(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(OSError, match=r".") as refused:
        whole_file(path).read(10)
    assert not isinstance(refused.value, FileNotFoundError)


def test_file_and_its_folder_are_private_to_their_owner(path: Path) -> None:
    whole_file(path).write(NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_relative_path_of_one_part_is_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = AtomicFile(Disk(), b"status")
    file.write(NEW)
    assert file.read(100) == NEW
    assert os.listdir(tmp_path) == ["status"]


def test_open_descriptor_keeps_the_old_contents(path: Path) -> None:
    whole_file(path).write(OLD)
    with path.open("rb") as reader:
        whole_file(path).write(NEW)
        assert reader.read() == OLD


def test_no_descriptor_is_left_open(path: Path) -> None:
    disk = FaultyDisk()
    file = whole_file(path, disk)
    file.write(NEW)
    file.read(100)
    assert disk.open_descriptors == set()
    for operation in (*CHANGING, "sync_folder", "read"):
        disk.fail(operation, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.read(100) if operation == "read" else file.write(OLD)
        disk.mend()
        assert disk.open_descriptors == set(), operation


# The process ends.


def test_kill_leaves_old_or_new_contents(path: Path) -> None:
    found = []
    for calls in range(operations_of_a_write(path)):
        whole_file(path).write(OLD)
        disk = FaultyDisk()
        disk.die_after(calls)
        with pytest.raises(ProcessDied):
            whole_file(path, disk).write(NEW)
        found.append(path.read_bytes())
        whole_file(path).write(b"another")
        assert path.read_bytes() == b"another", "what the end left behind is in nobody's way"
        assert os.listdir(path.parent) == [path.name]
    assert set(found) == {OLD, NEW}
    assert found == sorted(found, key=[OLD, NEW].index), "once it is new it stays so"


def test_power_failure_leaves_old_or_new_contents(path: Path) -> None:
    found = []
    for calls in range(operations_of_a_write(path)):
        whole_file(path).write(OLD)
        disk = faulty_disk(path)
        disk.die_after(calls)
        with pytest.raises(ProcessDied):
            whole_file(path, disk).write(NEW)
        found.append(held_after_a_power_failure(disk, path, path.parent.with_name(f"power-{calls}")))
    assert set(found) <= {OLD, NEW}


def test_written_contents_survive_a_power_failure(path: Path) -> None:
    disk = FaultyDisk()
    file = whole_file(path, disk)
    for number, data in enumerate((OLD, NEW)):
        file.write(data)
        assert held_after_a_power_failure(disk, path, path.parent.with_name(f"power-{number}")) == data


def test_first_write_leaves_the_new_contents_or_no_file(path: Path) -> None:
    found = set()
    for calls in range(operations_of_a_write(path.with_name("counted"))):
        disk = FaultyDisk()
        disk.die_after(calls)
        with pytest.raises(ProcessDied):
            whole_file(path, disk).write(NEW)
        found.add(path.read_bytes() if path.exists() else None)
        path.unlink(missing_ok=True)
    assert found == {None, NEW}


# The disk fails.


@pytest.mark.parametrize("operation", CHANGING)
def test_failed_write_is_an_error_and_keeps_the_old_contents(path: Path, operation: str) -> None:
    whole_file(path).write(OLD)
    disk = faulty_disk(path)
    disk.fail(operation, errno.EIO, torn_bytes=5)
    file = whole_file(path, disk)
    with pytest.raises(OSError, match="Input/output"):
        file.write(NEW)
    assert path.read_bytes() == OLD
    assert held_after_a_power_failure(disk, path, path.parent.with_name("power")) == OLD
    disk.mend()
    file.write(NEW)
    assert path.read_bytes() == NEW
    assert os.listdir(path.parent) == [path.name]


def test_full_disk_is_an_error_and_keeps_the_old_contents(path: Path) -> None:
    for room in range(len(NEW)):
        whole_file(path).write(OLD)
        disk = FaultyDisk()
        disk.room = room
        with pytest.raises(OSError, match="No space left"):
            whole_file(path, disk).write(NEW)
        assert path.read_bytes() == OLD


def test_failed_folder_sync_raises_with_complete_file(path: Path) -> None:
    whole_file(path).write(OLD)
    disk = faulty_disk(path)
    disk.fail("sync_folder", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        whole_file(path, disk).write(NEW)
    assert path.read_bytes() in (OLD, NEW)
    assert held_after_a_power_failure(disk, path, path.parent.with_name("power")) in (OLD, NEW)


def test_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file")
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        whole_file(tmp_path / "taken" / "file").write(NEW)
    assert (tmp_path / "taken").read_bytes() == b"a file"
