"""The shim records file operations, and what it says of a crash follows from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kestrel.testing import shim
from kestrel.testing.shim import FileOperation, Shim, files_after_power_failure, unsynced_operations
from tests.child import PATIENCE_S

OPERATIONS = [
    FileOperation("write", "a", 0, b"one", 1),
    FileOperation("sync", "a", 0, b"", 2),
    FileOperation("write", "a", 1, b"wo", 3),
    FileOperation("write", "b", 2, b"x", 4),
    FileOperation("rename", "b", 0, b"c", 5),
    FileOperation("truncate", "a", 2, b"", 6),
]

PROGRAM = """
import os
file = os.open("database/file", os.O_RDWR | os.O_CREAT)
os.write(file, b"abc")
os.pwrite(file, b"X", 1)
os.fsync(file)
os.pwrite(file, b"YZ", 3)
os.ftruncate(file, 4)
os.rename("database/file", "database/renamed")
open("database/gone", "wb").close()
os.unlink("database/gone")
"""
FULL = """
import os
file = os.open("database/file", os.O_RDWR)
print(os.pwrite(file, b"12", 0), os.pwrite(file, b"345", 2))
try:
    os.pwrite(file, b"6", 4)
except OSError as error:
    print(error.errno)
"""


def run(folder: Path, disk: Shim, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, env=disk.environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def test_power_failure_loses_the_chosen_writes_only() -> None:
    assert unsynced_operations(OPERATIONS) == [2, 3, 5]
    assert files_after_power_failure(OPERATIONS, ()) == {"a": b"ow", "c": b"\0\0x"}
    assert files_after_power_failure(OPERATIONS, {2, 3, 5}) == {"a": b"one", "c": b""}
    assert files_after_power_failure(OPERATIONS, {5}) == {"a": b"owo", "c": b"\0\0x"}


@pytest.mark.needs("gcc")
def test_recorded_operations_lead_to_the_files(tmp_path: Path) -> None:
    (tmp_path / "database").mkdir()
    with Shim(tmp_path, tmp_path / "database", has_log=True) as disk:
        ended = run(tmp_path, disk, PROGRAM)
        operations = disk.operations()
    assert (ended.returncode, ended.stderr) == (0, "")
    kinds = [operation.kind for operation in operations]
    assert kinds == ["write", "write", "sync", "write", "truncate", "rename", "remove"]
    assert files_after_power_failure(operations, ()) == {"renamed": b"aXcY"}
    assert files_after_power_failure(operations, unsynced_operations(operations)) == {"renamed": b"aXc"}


@pytest.mark.needs("gcc")
def test_process_is_killed_at_the_chosen_operation(tmp_path: Path) -> None:
    (tmp_path / "database").mkdir()
    with Shim(tmp_path, tmp_path / "database") as disk:
        disk["dies_at"] = 2
        assert run(tmp_path, disk, PROGRAM).returncode == -9
    assert (tmp_path / "database" / "file").read_bytes() == b"abc"


@pytest.mark.needs("gcc")
def test_full_disk_needs_room_only_for_bytes_behind_the_end(tmp_path: Path) -> None:
    (tmp_path / "database").mkdir()
    (tmp_path / "database" / "file").write_bytes(b"abc")
    with Shim(tmp_path, tmp_path / "database") as disk:
        disk.disk_is_full(0)
        assert run(tmp_path, disk, FULL).stdout == "2 1\n28\n"


def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "compiler", lambda: None)
    with pytest.raises(FileNotFoundError, match="no C compiler: install gcc"):
        Shim(tmp_path, tmp_path)
