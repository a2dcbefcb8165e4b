"""The target folder of an import, which gets all new queues or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.errors import FolderInUse
from kestrel.spark.fleet.import_target import ImportTarget
from kestrel.testing.faults import FaultyDisk
from kestrel.tools.tool_runner import ToolFailed
from tests.journal.handwritten import addx
from tests.journal.restarts import files_of
from tests.scroll.handwritten import WRITER, put
from tests.spark.fleet.folders import owned
from tests.tools.tool_processes import fill


def target_at(path: Path, disk: Disk | None = None) -> ImportTarget:
    return ImportTarget(disk or Disk(), bytes(path), 1000)


def test_missing_folder_is_created_as_by_a_server(tmp_path: Path) -> None:
    path = tmp_path / "new" / "spool"
    target = target_at(path)
    target.check([b"work"])
    with target.owned():
        assert (path.stat().st_mode & 0o777, os.listdir(path)) == (0o700, [".kestrel"])
        assert sorted(os.listdir(path / ".kestrel")) == ["lock", "storage-journal"]
        with pytest.raises(FolderInUse):
            FolderLock(bytes(path / ".kestrel" / "lock"))
    FolderLock(bytes(path / ".kestrel" / "lock")).release()


@pytest.mark.parametrize(
    ("folder", "files", "sentence"),
    [
        ("spool", {"work.1000": WRITER + put(1, b"x"), "work.read.": b""}, "has the format scroll: import into a new "),
        ("spool/.kestrel", {"storage-scroll": b""}, "has the format scroll: import into a new folder, and convert"),
        (".", {"spool": b""}, "exists and is not a folder: name another one"),
        ("spool", {"work.5": addx(b"x")}, "has the queue work already: import into another folder, or choose others"),
    ],
)
def test_unsuitable_folder_is_refused(
    tmp_path: Path, folder: str, files: dict[str, bytes], sentence: str
) -> None:
    fill(tmp_path / folder, files)
    with pytest.raises(ToolFailed, match=sentence) as refused:
        target_at(tmp_path / "spool").check([b"work", b"other"])
    assert refused.value.status == 2


def test_folder_with_other_queues_is_accepted(tmp_path: Path) -> None:
    fill(tmp_path, {"mail": addx(b"x"), "work~~7": b"torn"})
    target_at(tmp_path).check([b"work"])


def test_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr("kestrel.spark.fleet.import_target.os.geteuid", lambda: owner + 1)
    with pytest.raises(ToolFailed, match=rf"sudo -u '#{owner}' kestrel-fleet") as refused:
        target_at(tmp_path).check()
    assert refused.value.status == 73


def test_folder_owned_by_a_server_is_refused(tmp_path: Path) -> None:
    with (
        owned(tmp_path),
        pytest.raises(ToolFailed, match="stop it first, or import into another folder") as refused,
        target_at(tmp_path).owned(),
    ):
        pass
    assert refused.value.status == 75


def test_error_escapes_the_name_of_a_folder_in_use(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\x1b[2J\xff")
    path.mkdir()
    with (
        target_at(path).owned(),
        pytest.raises(ToolFailed, match=r"/\\x1b\[2J\\xff: stop it first"),
        target_at(path).owned(),
    ):
        pass


def test_files_of_a_killed_import_are_removed(tmp_path: Path) -> None:
    fill(tmp_path, {"work~~7": b"torn", "mail": addx(b"x"), "notes.txt": b"foreign"})
    with target_at(tmp_path).owned():
        assert files_of(tmp_path) == {"mail": addx(b"x"), "notes.txt": b"foreign"}


def test_queues_are_renamed_between_two_syncs_of_the_folder(tmp_path: Path) -> None:
    disk = FaultyDisk()
    target = target_at(tmp_path, disk)
    with target.owned():
        fill(tmp_path, {"work~~1000": addx(b"a"), "caf\xe9~~1001": addx(b"b")})
        disk.calls.clear()
        target.publish([(b"work", 1000), (b"caf\xe9", 1001)])
    assert files_of(tmp_path) == {"work": addx(b"a"), "caf\xe9": addx(b"b")}
    assert [call for call in disk.calls if call in ("rename", "sync_folder")] == [
        *["sync_folder"] * 2,
        *["rename"] * 2,
        *["sync_folder"] * 2,
    ]


@pytest.mark.parametrize(("operation", "after"), [("rename", 1), ("sync_folder", 2)])
def test_failed_publication_leaves_no_queue(tmp_path: Path, operation: str, after: int) -> None:
    disk = FaultyDisk()
    target = target_at(tmp_path, disk)
    with target.owned():
        fill(tmp_path, {"a~~1000": addx(b"a"), "b~~1000": addx(b"b"), "mail": addx(b"x")})
        disk.fail(operation, errno.EIO, after=after)
        with pytest.raises(OSError, match="Input/output error"):
            target.publish([(b"a", 1000), (b"b", 1000)])
        disk.mend()
        target.erase_temporary()
    assert files_of(tmp_path) == {"mail": addx(b"x")}


def test_queues_that_cannot_be_removed_again_are_named(tmp_path: Path) -> None:
    disk = FaultyDisk()
    target = target_at(tmp_path, disk)
    with target.owned():
        fill(tmp_path, {"a~~1000": addx(b"a"), "b~~1000": addx(b"b")})
        disk.fail("rename", errno.EROFS, after=1)
        disk.fail("erase", errno.EROFS)
        with pytest.raises(ToolFailed, match=r"failed halfway \(Read-only file system.*still has the queue a of it"):
            target.publish([(b"a", 1000), (b"b", 1000)])


def test_missing_file_prevents_the_publication(tmp_path: Path) -> None:
    target = target_at(tmp_path)
    with target.owned(), pytest.raises(ToolFailed, match="that this machine does not see"):
        fill(tmp_path, {"work~~1000": addx(b"a")})
        target.publish([(b"work", 1000), (b"mail", 1000)])
    assert files_of(tmp_path) == {"work~~1000": addx(b"a")}


def test_free_space_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    target = target_at(tmp_path)
    target.check_room(1, 100)
    with pytest.raises(ToolFailed, match="make room, or name a folder on another disk") as refused:
        target.check_room(1, 1 << 60)
    assert refused.value.status == 73
