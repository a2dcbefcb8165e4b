"""Each of many folders is packed as by kestrel-qpack, and a failure does not affect the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.spark.fleet.pack import pack_folder
from kestrel.spark.fleet.units import folder_units, folders_of
from tests.journal.handwritten import REMOVE, addx
from tests.journal.restarts import files_of
from tests.spark.fleet.folders import (
    NOW_MS,
    RECORDED,
    Qpack,
    name_of,
    owned,
    pack_here,
    told,
)
from tests.tools.tool_processes import fill


@pytest.mark.parametrize("recorded", RECORDED, ids=name_of)
def test_fleet_pack_matches_single_folder_tool(
    recorded: Path, tmp_path: Path, qpack: Qpack
) -> None:
    ours, other = (Path(shutil.copytree(recorded, tmp_path / name)) for name in ("ours", "other"))
    outcome = told(pack_here(ours))
    assert outcome == qpack(other)
    assert files_of(ours) == files_of(other)


def test_owned_folder_is_reported_and_others_packed(tmp_path: Path) -> None:
    for name in ("web1", "web2"):
        fill(tmp_path / name, {"work": addx(b"a") + REMOVE + addx(b"b")})
    with owned(tmp_path / "web1"):
        reports = pack_here(tmp_path / "*")
    assert [(report.server, report.state, report.status) for report in reports] == [
        ("web1", "in use", 75),
        ("web2", "packed", 0),
    ]
    owner = f"another server (process {os.getpid()}) owns the queue folder {tmp_path}/web1"
    assert reports[0].remarks == [f"{owner}: stop it first, or check the files with kestrel-fleet verify"]
    assert files_of(tmp_path / "web1") == {"work": addx(b"a") + REMOVE + addx(b"b")}
    assert files_of(tmp_path / "web2") == {"work": addx(b"b")}


def test_folder_is_released_when_its_rows_are_there(tmp_path: Path) -> None:
    fill(tmp_path, {"work": addx(b"a") + REMOVE})
    (unit,) = folder_units(Disk(), folders_of([str(tmp_path)], None), [])
    rows = pack_folder(unit, NOW_MS)
    next(rows)
    FolderLock(bytes(tmp_path / ".kestrel" / "lock")).release()


def test_files_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"work": addx(b"a") + REMOVE})
    owner = os.geteuid()
    monkeypatch.setattr("kestrel.tools.files.folder.os.geteuid", lambda: owner + 1)
    (report,) = pack_here(tmp_path)
    assert (report.state, report.status) == ("failed", 73)
    assert f"(sudo -u '#{owner}' kestrel-fleet ...)" in report.remarks[0]
    assert files_of(tmp_path) == {"work": addx(b"a") + REMOVE}


def test_only_the_named_queues_are_packed(tmp_path: Path) -> None:
    fill(tmp_path / "web1", {name: addx(b"x") + REMOVE for name in ("a", "b")})
    fill(tmp_path / "web2", {"b": addx(b"x") + REMOVE})
    reports = pack_here(tmp_path / "*", names=[b"a"])
    assert [report.server for report in reports] == ["web1"]
    assert files_of(tmp_path / "web1") == {"a": b"", "b": addx(b"x") + REMOVE}
