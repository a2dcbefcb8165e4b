"""The interface to the file system, which passes on the system's errors."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.testing.faults import FaultyDisk, ProcessDied

PathOf = Callable[[str], bytes]


@pytest.fixture(params=[Disk, FaultyDisk])
def disk(request: pytest.FixtureRequest) -> Disk:
    """The disk, and the one for tests, which is equal unless a test changes it."""
    return request.param()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "folder"


@pytest.fixture
def path(folder: Path) -> PathOf:
    """The path of a file in the folder."""
    folder.mkdir()
    return lambda name: str(folder / name).encode()


# Folders.


def test_folders_are_made_with_their_parents_for_the_owner_only(disk: Disk, folder: Path) -> None:
    disk.make_folder(str(folder / "a" / "b").encode())
    assert stat.S_IMODE((folder / "a" / "b").stat().st_mode) == 0o700


def test_creating_an_existing_folder_is_no_error(disk: Disk, folder: Path) -> None:
    disk.make_folder(str(folder).encode())
    (folder / "file").write_bytes(b"a")
    disk.make_folder(str(folder).encode())
    assert (folder / "file").read_bytes() == b"a"


def test_a_folder_cannot_replace_a_file(disk: Disk, folder: Path) -> None:
    folder.write_bytes(b"")
    with pytest.raises(OSError, match="exists"):
        disk.make_folder(str(folder).encode())


def test_only_files_and_links_to_files_are_listed(disk: Disk, folder: Path, path: PathOf) -> None:
    (folder / "plain").write_bytes(b"")
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder / "plain")
    (folder / "link to a folder").symlink_to(folder / "sub")
    (folder / "link to nothing").symlink_to(folder / "missing")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    Path(os.fsdecode(path("") + b"/\xff\xfe")).write_bytes(b"")
    assert sorted(disk.list_files(str(folder).encode())) == [b"link", b"plain", b"\xff\xfe"]


def test_a_missing_folder_cannot_be_listed(disk: Disk, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.list_files(str(folder).encode())


def test_a_folder_can_be_synced_and_a_missing_one_cannot(disk: Disk, tmp_path: Path) -> None:
    disk.sync_folder(str(tmp_path).encode())
    with pytest.raises(FileNotFoundError):
        disk.sync_folder(str(tmp_path / "missing").encode())


# Writing.


def test_a_file_is_made_for_its_owner_only(disk: Disk, folder: Path, path: PathOf) -> None:
    disk.close(disk.open_append(path("a")))
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o600


def test_writes_are_appended(disk: Disk, folder: Path, path: PathOf) -> None:
    (folder / "a").write_bytes(b"old ")
    descriptor = disk.open_append(path("a"))
    disk.write(descriptor, b"new ")
    disk.write(descriptor, b"newer")
    assert disk.size(descriptor) == 13
    disk.close(descriptor)
    assert (folder / "a").read_bytes() == b"old new newer"


def test_writes_after_a_truncation_go_to_the_new_end(disk: Disk, folder: Path, path: PathOf) -> None:
    descriptor = disk.open_append(path("a"))
    disk.write(descriptor, b"abcdef")
    disk.cut(descriptor, 2)
    disk.write(descriptor, b"X")
    disk.sync(descriptor)
    disk.close(descriptor)
    assert (folder / "a").read_bytes() == b"abX"


def test_short_writes_are_continued(disk: Disk, folder: Path, path: PathOf, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    descriptor = disk.open_append(path("a"))
    disk.write(descriptor, b"0123456789")
    disk.close(descriptor)
    assert (folder / "a").read_bytes() == b"0123456789"


def test_a_duplicate_outlives_its_descriptor(disk: Disk, folder: Path, path: PathOf) -> None:
    descriptor = disk.open_append(path("a"))
    copy = disk.duplicate(descriptor)
    disk.close(descriptor)
    disk.write(copy, b"a")
    disk.close(copy)
    assert (folder / "a").read_bytes() == b"a"


def test_no_descriptor_is_inherited_by_a_started_program(disk: Disk, path: PathOf) -> None:
    descriptor = disk.open_append(path("a"))
    copy = disk.duplicate(descriptor)
    assert not os.get_inheritable(descriptor)
    assert not os.get_inheritable(copy)
    disk.close(descriptor)
    disk.close(copy)


# Reading.


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [(0, 4, b"0123"), (2, 3, b"234"), (8, 100, b"89"), (10, 1, b""), (100, 1, b""), (0, 0, b"")],
)
def test_a_read_stops_at_the_end_of_the_file(
    disk: Disk, folder: Path, path: PathOf, offset: int, size: int, expected: bytes
) -> None:
    (folder / "a").write_bytes(b"0123456789")
    descriptor = disk.open_read(path("a"))
    assert disk.read(descriptor, offset, size) == expected
    disk.close(descriptor)


def test_a_missing_file_cannot_be_read(disk: Disk, path: PathOf) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open_read(path("a"))


def test_a_pipe_cannot_be_read(disk: Disk, folder: Path, path: PathOf) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        disk.open_read(path("pipe"))


# Names.


def test_a_rename_replaces_a_file_of_that_name(disk: Disk, folder: Path, path: PathOf) -> None:
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")
    disk.rename(path("a"), path("b"))
    assert [(file.name, file.read_bytes()) for file in folder.iterdir()] == [("b", b"a")]


def test_renaming_a_missing_file_fails_and_replaces_nothing(disk: Disk, folder: Path, path: PathOf) -> None:
    (folder / "b").write_bytes(b"b")
    with pytest.raises(FileNotFoundError):
        disk.rename(path("a"), path("b"))
    assert (folder / "b").read_bytes() == b"b"


def test_erasing_removes_a_file_and_ignores_a_missing_one(disk: Disk, folder: Path, path: PathOf) -> None:
    (folder / "a").write_bytes(b"a")
    disk.erase(path("a"))
    disk.erase(path("a"))
    assert list(folder.iterdir()) == []


# Reserved space.


def test_allocated_space_is_reserved_on_disk(disk: Disk, folder: Path, path: PathOf) -> None:
    disk.allocate(path("a"), 1 << 20)
    status = (folder / "a").stat()
    assert (status.st_size, status.st_blocks * 512 >= 1 << 20) == (1 << 20, True)


def test_a_failed_allocation_leaves_no_file(
    disk: Disk, folder: Path, path: PathOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(OSError, match="No space left"):
        disk.allocate(path("a"), 1 << 16)
    assert list(folder.iterdir()) == []


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report free space for one block."""
    room = os.statvfs_result((4096, 4096, 1000, 1, 1, 1000, 1000, 1000, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: room)


@pytest.mark.usefixtures("full")
def test_an_allocation_above_the_free_space_is_not_tried(
    disk: Disk, folder: Path, path: PathOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda descriptor, offset, size: tried.append(size))
    with pytest.raises(OSError, match="No space left") as raised:
        disk.allocate(path("a"), 4097)
    assert (raised.value.errno, tried, list(folder.iterdir())) == (errno.ENOSPC, [], [])
    disk.allocate(path("a"), 4096)
    assert tried == [4096]


def test_allocated_space_counts_for_the_next_allocation(
    disk: Disk, folder: Path, path: PathOf, request: pytest.FixtureRequest
) -> None:
    disk.allocate(path("a"), 1 << 16)
    request.getfixturevalue("full")
    disk.allocate(path("a"), 1 << 16)
    with pytest.raises(OSError, match="No space left"):
        disk.allocate(path("a"), 1 << 17)
    assert (folder / "a").stat().st_size == 1 << 16


# The disk for tests.


@pytest.fixture
def faulty() -> FaultyDisk:
    return FaultyDisk()


def test_an_operation_fails_as_often_and_as_late_as_set(faulty: FaultyDisk, path: PathOf) -> None:
    descriptor = faulty.open_append(path("a"))
    faulty.fail("write", errno.ENOSPC, after=2, times=1)
    faulty.write(descriptor, b"1")
    faulty.write(descriptor, b"2")
    with pytest.raises(OSError, match="No space left"):
        faulty.write(descriptor, b"3")
    faulty.write(descriptor, b"4")
    assert Path(os.fsdecode(path("a"))).read_bytes() == b"124"
    faulty.close(descriptor)


def test_a_failing_write_may_have_written_a_part(faulty: FaultyDisk, path: PathOf) -> None:
    descriptor = faulty.open_append(path("a"))
    faulty.fail("write", errno.EIO, torn_bytes=3)
    with pytest.raises(OSError, match="Input/output error"):
        faulty.write(descriptor, b"abcdef")
    faulty.mend()
    faulty.write(descriptor, b"X")
    assert Path(os.fsdecode(path("a"))).read_bytes() == b"abcX"
    faulty.close(descriptor)


def test_writes_use_space_and_truncation_and_erasing_free_it(faulty: FaultyDisk, path: PathOf) -> None:
    faulty.room = 10
    descriptor = faulty.open_append(path("a"))
    with pytest.raises(OSError, match="No space left"):
        faulty.write(descriptor, b"x" * 11)
    assert (faulty.size(descriptor), faulty.room) == (10, 0)
    faulty.cut(descriptor, 4)
    assert faulty.room == 6
    faulty.allocate(path("b"), 5)
    assert faulty.room == 1
    faulty.erase(path("b"))
    assert faulty.room == 6
    faulty.close(descriptor)


def test_a_process_can_die_in_the_middle_of_a_write(faulty: FaultyDisk, path: PathOf) -> None:
    descriptor = faulty.open_append(path("a"))
    faulty.die_after(1)
    faulty.write(descriptor, b"whole")
    with pytest.raises(ProcessDied):
        faulty.write(descriptor, b"half")
    assert Path(os.fsdecode(path("a"))).read_bytes() == b"wholeha"
    faulty.close(descriptor)


def on_medium(disk: FaultyDisk, folder: Path) -> dict[str, bytes]:
    """Return the contents after a power failure."""
    copy = folder.with_name("medium")
    disk.medium.copy(str(folder).encode(), str(copy).encode())
    return {file.name: file.read_bytes() for file in copy.iterdir()}


def test_a_power_failure_keeps_initial_contents(faulty: FaultyDisk, folder: Path, path: PathOf) -> None:
    (folder / "old").write_bytes(b"old")
    descriptor = faulty.open_append(path("old"))
    faulty.write(descriptor, b" and new")
    faulty.close(descriptor)
    assert on_medium(faulty, folder) == {"old": b"old"}


def test_a_power_failure_keeps_synced_data_in_synced_folders(faulty: FaultyDisk, folder: Path, path: PathOf) -> None:
    for name in ("kept", "no entry"):
        descriptor = faulty.open_append(path(name))
        faulty.write(descriptor, b"synced")
        faulty.sync(descriptor)
        faulty.write(descriptor, b", not synced")
        faulty.close(descriptor)
        if name == "kept":
            faulty.sync_folder(str(folder).encode())
    assert on_medium(faulty, folder) == {"kept": b"synced"}


def test_a_power_failure_undoes_renames_and_erasures_not_synced(faulty: FaultyDisk, folder: Path, path: PathOf) -> None:
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(name.encode())
    faulty.rename(path("a"), path("b"))
    faulty.erase(path("c"))
    assert on_medium(faulty, folder) == {"a": b"a", "b": b"b", "c": b"c"}


def test_writes_before_a_failed_sync_are_lost(faulty: FaultyDisk, folder: Path, path: PathOf) -> None:
    (folder / "a").write_bytes(b"old")
    descriptor = faulty.open_append(path("a"))
    faulty.write(descriptor, b"lost")
    faulty.fail("sync", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output error"):
        faulty.sync(descriptor)
    faulty.sync(descriptor)
    faulty.close(descriptor)
    assert on_medium(faulty, folder) == {"a": b"old"}


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_cannot_be_opened_for_writing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "work"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(OSError, match="not a regular file"):
        Disk().open_append(os.fsencode(path))
