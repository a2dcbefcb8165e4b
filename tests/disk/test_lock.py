"""One owner for each folder, however the last one ended."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestrel.disk.lock import FolderLock
from kestrel.errors import FolderInUse
from tests.child import Child

OWNER = """
import sys
from kestrel.disk.lock import FolderLock
lock = FolderLock(sys.argv[1].encode())
print("locked", flush=True)
sys.stdin.read()
"""
"""A program that takes the lock and keeps it until its input ends."""


@pytest.fixture
def path(tmp_path: Path) -> bytes:
    return str(tmp_path / "lock").encode()


@contextmanager
def owned(path: Path) -> Iterator[Child[str]]:
    """Provide another process that holds the lock."""
    root = Path(__file__).parents[2]
    process = Child(
        [sys.executable, "-c", OWNER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    with process:
        assert process.read_line() == "locked\n"
        yield process
        process.kill()


@pytest.fixture
def owner(path: bytes) -> Iterator[Child[str]]:
    """Another process, which holds the lock."""
    with owned(Path(path.decode())) as process:
        yield process


def test_a_second_owner_in_the_same_process_is_refused(path: bytes) -> None:
    lock = FolderLock(path)
    with pytest.raises(FolderInUse):
        FolderLock(path)
    lock.release()


def test_refusal_of_second_owner_names_first_process(
    path: bytes, owner: Child[str]
) -> None:
    with pytest.raises(FolderInUse, match=rf"\b{owner.pid}\b"):
        FolderLock(path)


def test_a_refusal_does_not_change_the_owners_process_id(path: bytes, owner: Child[str]) -> None:
    for _ in range(2):
        with pytest.raises(FolderInUse, match=rf"\b{owner.pid}\b"):
            FolderLock(path)


def test_a_killed_owner_owns_nothing(path: bytes, owner: Child[str]) -> None:
    owner.kill()
    owner.wait()
    lock = FolderLock(path)
    with pytest.raises(FolderInUse, match=rf"\b{os.getpid()}\b"):
        FolderLock(path)
    lock.release()


def test_a_released_lock_can_be_taken_again(path: bytes) -> None:
    FolderLock(path).release()
    FolderLock(path).release()


def test_the_file_remains_when_the_lock_is_released(path: bytes, tmp_path: Path) -> None:
    FolderLock(path).release()
    assert (tmp_path / "lock").exists()


def test_a_shorter_process_id_replaces_a_longer_one(path: bytes, tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"99999999999\n")
    lock = FolderLock(path)
    assert (tmp_path / "lock").read_bytes() == b"%d\n" % os.getpid()
    lock.release()


def test_a_lock_without_a_process_id_is_refused(path: bytes, tmp_path: Path) -> None:
    lock = FolderLock(path)
    (tmp_path / "lock").write_bytes(b"")
    with pytest.raises(FolderInUse):
        FolderLock(path)
    lock.release()


def test_a_missing_folder_raises_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FolderLock(str(tmp_path / "missing" / "lock").encode())


def test_the_lock_works_if_the_process_id_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kestrel.disk.lock.os.write", full)
    lock = FolderLock(os.fsencode(tmp_path / "lock"))
    with pytest.raises(FolderInUse):
        FolderLock(os.fsencode(tmp_path / "lock"))
    lock.release()
