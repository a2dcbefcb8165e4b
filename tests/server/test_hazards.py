"""Short forms of tests/torture/hazards.py, with real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture import damage_while_down, no_inodes, unread_replies, unusual_names
from tests.torture.check_report import CheckReport
from tests.torture.hazards import STORAGES


@pytest.mark.parametrize("storage", STORAGES)
def test_damage_while_the_server_is_down_loses_no_other_item(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_while_down, "ROUNDS", 3)
    report = CheckReport()
    damage_while_down.torture(tmp_path, storage, 1, report)
    assert (report.passed, report.failed) == (2, 0), capsys.readouterr().out


@pytest.mark.parametrize("storage", STORAGES)
def test_deleted_queues_with_unusual_names_leave_no_file(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unusual_names, "STEPS", 100)
    monkeypatch.setattr(unusual_names, "RESTARTS_EVERY", 50)
    report = CheckReport()
    unusual_names.torture(tmp_path, storage, 1, report)
    assert (report.passed, report.failed) == (3, 0), capsys.readouterr().out


def test_unread_replies_use_bounded_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = CheckReport()
    unread_replies.torture(tmp_path, "journal", 1, report)
    assert (report.passed, report.failed) == (2, 0), capsys.readouterr().out


@pytest.mark.needs("mount")
@pytest.mark.parametrize("storage", STORAGES)
def test_clients_can_free_inodes(storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = CheckReport()
    no_inodes.torture(tmp_path, storage, 1, report)
    assert (report.passed, report.failed) == (3, 0), capsys.readouterr().out
