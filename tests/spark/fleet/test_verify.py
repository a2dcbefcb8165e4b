"""The verification of many folders has the rows of kestrel-qpack --verify for each."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kestrel.spark.fleet.units import Unit
from kestrel.spark.fleet.verify import format_outcomes, verify_unit
from kestrel.testing.faults import FaultyDisk
from kestrel.tools.files.folder import Folder
from tests.journal.handwritten import REMOVE, addx
from tests.journal.restarts import files_of
from tests.scroll.handwritten import READER, read_done, read_head
from tests.spark.fleet.folders import NOW_MS, RECORDED, Qpack, fleet, name_of, told, verify_here
from tests.tools.tool_processes import fill


@pytest.mark.parametrize("recorded", RECORDED, ids=name_of)
def test_fleet_verify_rows_match_single_folder_tool(recorded: Path, qpack: Qpack) -> None:
    assert told(verify_here(recorded)) == qpack("--verify", recorded)


def test_rows_have_the_server_and_the_folder(tmp_path: Path) -> None:
    pattern = fleet(tmp_path, RECORDED[:2])
    reports = verify_here(pattern)
    assert {(report.server, report.folder) for report in reports} == {
        (name_of(folder), f"{tmp_path}/{name_of(folder)}/spool") for folder in RECORDED[:2]
    }


def test_names_that_no_server_serves_are_reported(tmp_path: Path, qpack: Qpack) -> None:
    reader = READER + read_head(0) + read_done()
    fill(tmp_path, {"work.read.a.b": reader, "odd:name.read.": reader, "<script>": addx(b"x"), "caf\xe9": b""})
    status, objects, remarks = told(verify_here(tmp_path))
    assert (status, objects, remarks) == qpack("--verify", tmp_path)
    assert status == 1
    assert [fields["queue"] for fields in objects] == ["<script>", "caf\xe9", None]


def test_folder_of_archived_files_is_no_damage(tmp_path: Path, qpack: Qpack) -> None:
    fill(tmp_path, {"archive~work.1700000000000": b""})
    outcome = told(verify_here(tmp_path))
    assert outcome == qpack("--verify", tmp_path)
    assert outcome[:2] == (0, [])


def test_unreadable_queue_is_a_row_and_others_continue(tmp_path: Path) -> None:
    fill(tmp_path, {"a": addx(b"x"), "b": addx(b"y")})
    disk = FaultyDisk()
    disk.fail("read", errno.EIO, times=1)
    status, (first, second), _ = told(verify_here(tmp_path, disk=disk))
    assert (status, first["state"], second["state"]) == (1, "failed", "ok")
    assert first["reason"].startswith("queue a: cannot be read: Input/output error; copy the folder to a good disk")


def test_folder_that_cannot_be_listed_is_a_row(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail("list", errno.EACCES)
    (batch,) = verify_unit(Unit(0, "web1", bytes(tmp_path)), Folder(disk, bytes(tmp_path)), NOW_MS)
    (row,) = batch.to_pylist()
    assert (row["server"], row["queue"], row["state"], row["status"]) == ("web1", None, "failed", 1)
    assert row["reason"] == "cannot be read: Permission denied; run this as the user that the server runs as"


def test_verification_changes_nothing(tmp_path: Path) -> None:
    files = {"work.1": addx(b"a") + b"\xee", "work~~5": b"x", "work": REMOVE}
    fill(tmp_path, files)
    verify_here(tmp_path)
    assert files_of(tmp_path) == files
    assert not (tmp_path / ".kestrel").exists()


def test_text_output_has_queues_servers_and_totals(tmp_path: Path) -> None:
    fill(tmp_path / "web1", {"work": addx(b"a") + REMOVE, "mail": addx(b"b")})
    fill(tmp_path / "web2", {"work": b"\xee"})
    reports = verify_here(tmp_path / "*")
    assert list(format_outcomes(reports)) == [
        "server  queue  state    files  bytes  packed  items",
        "web1    mail   ok           1     22      22      1",
        "web1    work   ok           1     23       0      0",
        "web2    work   damaged      1      1       0      0",
        "",
        "server  queues  files  bytes  packed  items  states",
        "web1         2      2     45      22      1  2 ok",
        "web2         1      1      1       0      0  1 damaged",
        "",
        "2 folders, 3 queues, 1 item: 1 damaged, 2 ok",
    ]
    assert list(format_outcomes(reports[:2]))[3:] == ["1 folder, 2 queues, 1 item: 2 ok"]
    assert list(format_outcomes([])) == ["no queues"]
