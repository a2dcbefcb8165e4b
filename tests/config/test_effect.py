"""Settings that a file gives and the server does not act on are named, and no others."""

from __future__ import annotations

import pytest

from kestrel.config.effect import (
    queue_settings_above,
    queue_settings_given,
    server_settings_given,
    settings_without_effect,
)
from kestrel.config.load import loads
from kestrel.config.model import AdminSettings, AliasSettings, Config, QueueSettings
from kestrel.config.setting import settings_of


def a_value_like(default: object) -> str:
    if isinstance(default, bool):
        return "true"
    return '"none"' if default is None else "1"


def test_a_server_without_a_file_has_nothing_to_tell() -> None:
    assert settings_without_effect(Config()) == settings_without_effect(loads("")) == []


@pytest.mark.parametrize("name", settings_of(QueueSettings))
@pytest.mark.parametrize(
    ("head", "path"), [("[default]", "default"), ("[[queues]]\nname = 'a+x'", 'queues["a+x"]')]
)
def test_a_queues_setting_is_named_exactly_if_it_has_no_effect(name: str, head: str, path: str) -> None:
    setting = settings_of(QueueSettings)[name]
    value = a_value_like(getattr(QueueSettings(), name))
    config = loads(f"{head}\n{setting.kestrel_name} = {value}")
    assert settings_without_effect(config) == [f"{path}.{setting.kestrel_name}"] * (not setting.effective)


def test_settings_of_other_tables_are_named_where_they_are_given_even_at_their_defaults() -> None:
    config = loads(
        """
        textListenPort = 2222
        [[aliases]]
        name = "both"
        destinationQueues = ["a", "b"]
        [admin]
        httpPort = 2223
        """
    )
    given = {
        "textListenPort": settings_of(Config)["text_listen_port"],
        'aliases["both"].destinationQueues': settings_of(AliasSettings)["destination_queues"],
        "admin.httpPort": settings_of(AdminSettings)["http_port"],
    }
    assert settings_without_effect(config) == [
        path for path, setting in given.items() if not setting.effective
    ]


def test_the_settings_that_make_the_journal_safe_have_an_effect() -> None:
    assert settings_without_effect(loads('[default]\nkeepJournal = true\nsyncJournal = "1s"')) == []


def test_a_port_that_is_turned_off_is_not_named() -> None:
    assert settings_without_effect(loads("[admin]\nhttpPort = false\n")) == []


def test_of_some_settings_of_queues_those_are_named_that_are_given() -> None:
    config = loads(
        """
        [default]
        maxJournalSize = "1GiB"
        maxItems = 3
        [[queues]]
        name = "a+x"
        minJournalCompactDelay = "none"
        """
    )
    names = {"max_journal_size_bytes", "min_journal_compact_delay_ms", "sync_journal_ms"}
    assert queue_settings_given(config, names) == ["default.maxJournalSize", 'queues["a+x"].minJournalCompactDelay']
    assert queue_settings_given(config, ()) == queue_settings_given(loads(""), names) == []


def test_of_bounded_settings_of_queues_those_are_named_that_are_given_beyond_it() -> None:
    config = loads(
        """
        [default]
        maxMemorySize = "64MiB"
        [[queues]]
        name = "a"
        maxMemorySize = "256KiB"
        [[queues]]
        name = "b"
        maxMemorySize = 262145
        """
    )
    most = {"max_memory_size_bytes": 256 * 1024}
    named = ["default.maxMemorySize above 256KiB", 'queues["b"].maxMemorySize above 256KiB']
    assert queue_settings_above(config, most) == named
    assert queue_settings_above(config, {}) == queue_settings_above(loads(""), most) == []


def test_what_is_set_to_no_bound_at_all_is_beyond_any() -> None:
    config = loads('[default]\nmaxSize = "none"\n[[queues]]\nname = "a"\nmaxSize = "1KiB"\n')
    assert queue_settings_above(config, {"max_size_bytes": 2048}) == ["default.maxSize above 2KiB"]


def test_of_some_settings_of_the_server_those_are_named_that_are_given() -> None:
    config = loads('diskReserveSize = "16MiB"\nstorage = "memory:"\nmemcacheListenPort = 5\n')
    names = ("queue_path", "disk_reserve_size_bytes")
    assert server_settings_given(config, names) == ["diskReserveSize"]
    assert server_settings_given(loads(""), names) == server_settings_given(config, ()) == []
