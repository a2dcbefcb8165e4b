"""Every setting says what it is, and has the default that operators rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from kestrel.config.model import (
    AdminSettings,
    AliasSettings,
    Config,
    LoggingSettings,
    QueueSettings,
    TlsSettings,
    ZooKeeperSettings,
)
from kestrel.config.setting import settings_of

MIB, GIB = 2**20, 2**30

CLASSES: list[type[Any]] = [
    AdminSettings,
    AliasSettings,
    Config,
    LoggingSettings,
    QueueSettings,
    TlsSettings,
    ZooKeeperSettings,
]

QUEUE_DEFAULTS: dict[str, object] = {
    "maxItems": None,
    "maxSize": None,
    "maxItemSize": None,
    "maxAge": None,
    "defaultJournalSize": 16 * MIB,
    "maxMemorySize": 128 * MIB,
    "maxJournalSize": GIB,
    "minJournalCompactDelay": 60_000,
    "discardOldWhenFull": False,
    "keepJournal": True,
    "syncJournal": None,
    "expireToQueue": None,
    "maxExpireSweep": None,
    "maxRedeliveries": None,
    "errorQueue": None,
    "fanoutOnly": False,
    "maxQueueAge": None,
    "enableTrace": False,
    "disableAggressiveRewrites": False,
    "openTransactionTimeout": None,
    "whiteListClientIdForEnqueue": None,
    "whiteListClientIdForDequeue": None,
}

SERVER_DEFAULTS: dict[str, object] = {
    "listenAddress": "0.0.0.0",
    "memcacheListenPort": 22133,
    "textListenPort": 2222,
    "thriftListenPort": 2229,
    "connectionBacklog": 1024,
    "storage": None,
    "diskReserveSize": 16 * MIB,
    "maxTotalMemory": None,
    "defaultStatus": "Up",
    "statusChangeGracePeriod": 0,
    "expirationTimerFrequency": None,
    "clientTimeout": None,
    "maxOpenTransactions": 1,
    "connectionLimitRefuseWrites": None,
    "connectionLimitRefuseReads": None,
    "maxRequestItemSize": 16 * MIB,
    "maxRequestSize": 32 * MIB,
    "maxTextPutItems": 1024,
    "maxThriftListSize": 10_000,
    "maxLineSize": 8192,
    "maxPipelineBytes": MIB,
    "echoRequestedKey": True,
    "enableSessionTrace": False,
}


def by_kestrel_name(settings: attrs.AttrsInstance) -> dict[str, object]:
    return {known.kestrel_name: getattr(settings, name) for name, known in settings_of(type(settings)).items()}


def test_the_defaults_of_a_queue() -> None:
    assert by_kestrel_name(QueueSettings()) == QUEUE_DEFAULTS


def test_the_defaults_of_the_server() -> None:
    defaults = by_kestrel_name(Config())
    assert {name: defaults[name] for name in SERVER_DEFAULTS} == SERVER_DEFAULTS
    assert Config().admin == AdminSettings(http_port=2223)
    assert Config().zookeeper is None
    assert Config().logging == LoggingSettings(
        level="info", levels={}, file=None, format="text", rotate_size_bytes=None, rotate_count=10
    )


@pytest.mark.parametrize("cls", CLASSES)
def test_every_field_of_a_table_is_a_setting(cls: type[Any]) -> None:
    assert {field.name for field in attrs.fields(cls)} - {"given"} == set(settings_of(cls))


@pytest.mark.parametrize("cls", CLASSES)
def test_no_two_settings_of_a_table_share_a_name(cls: type[Any]) -> None:
    names = [setting.kestrel_name for setting in settings_of(cls).values()]
    assert len(names) == len(set(names))


def test_the_zookeeper_password_is_not_in_the_repr() -> None:
    zookeeper = ZooKeeperSettings(host="zoo", path_prefix="/kestrel", credentials="kestrel:secret")
    assert "secret" not in repr(Config(zookeeper=zookeeper))


def test_state_is_kept_in_the_users_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Config().queue_path == str(tmp_path / "kestrel" / "queues")
    assert Config().status_file == str(tmp_path / "kestrel" / "status")


@pytest.mark.parametrize("state_home", [None, "", "not/absolute"])
def test_state_is_kept_below_home_without_a_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state_home: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if state_home is not None:
        monkeypatch.setenv("XDG_STATE_HOME", state_home)
    assert Config().queue_path == str(tmp_path / ".local" / "state" / "kestrel" / "queues")
