"""Short forms of tests/torture/hazards.py, over real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture import damage_while_down, no_inodes, strange_names, unread_replies
from tests.torture.hazards import STORAGES
from tests.torture.kill_restart import Ledger


@pytest.mark.parametrize("storage", STORAGES)
def test_damage_while_the_server_is_down(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage_while_down, "ROUNDS", 3)
    ledger = Ledger()
    damage_while_down.torture(tmp_path, storage, 1, ledger)
    assert (ledger.passed, ledger.failed) == (2, 0), capsys.readouterr().out


@pytest.mark.parametrize("storage", STORAGES)
def test_deleted_queues_with_strange_names_leave_no_file(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strange_names, "STEPS", 100)
    monkeypatch.setattr(strange_names, "RESTARTS_EVERY", 50)
    ledger = Ledger()
    strange_names.torture(tmp_path, storage, 1, ledger)
    assert (ledger.passed, ledger.failed) == (3, 0), capsys.readouterr().out


def test_unread_replies_take_bounded_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger()
    unread_replies.torture(tmp_path, "journal", 1, ledger)
    assert (ledger.passed, ledger.failed) == (2, 0), capsys.readouterr().out


@pytest.mark.parametrize("storage", STORAGES)
def test_clients_can_make_room_without_inodes(
    storage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger()
    no_inodes.torture(tmp_path, storage, 1, ledger)
    assert not ledger.failed, capsys.readouterr().out
