"""The settings of a session."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from kestrel.spark.session import own_scratch, settings_with


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[2,3]"])
def test_embedded_session_accepts_no_connections(master: str) -> None:
    settings = settings_with(master, {})
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.authenticate"] == "true"


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://head:7077", "yarn"])
def test_workers_of_a_cluster_can_connect(master: str) -> None:
    for settings in (settings_with(master, {}), settings_with("local[*]", {"spark.master": master})):
        assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.authenticate"} & settings.keys()


def test_settings_of_the_user_win() -> None:
    assert settings_with("local[4]", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


def test_spilled_files_can_be_read_only_by_their_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment: dict[str, str] = {}
    own_scratch(environment)
    folder = Path(environment["SPARK_LOCAL_DIRS"])
    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_configured_folder_is_used(tmp_path: Path) -> None:
    environment = {"SPARK_LOCAL_DIRS": "/named"}
    own_scratch(environment)
    assert environment == {"SPARK_LOCAL_DIRS": "/named"}
