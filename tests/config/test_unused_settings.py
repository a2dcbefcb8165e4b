"""Given settings that the storage does not use are listed."""

from __future__ import annotations

from kestrel.config.dump import queue_settings_given, queue_settings_over_limit, server_settings_given
from kestrel.config.load import loads


def test_unused_queue_settings_are_listed_if_given() -> None:
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


def test_queue_settings_above_a_limit_are_listed() -> None:
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
    assert queue_settings_over_limit(config, most) == named
    assert queue_settings_over_limit(config, {}) == queue_settings_over_limit(loads(""), most) == []


def test_a_setting_of_none_exceeds_every_limit() -> None:
    config = loads('[default]\nmaxSize = "none"\n[[queues]]\nname = "a"\nmaxSize = "1KiB"\n')
    assert queue_settings_over_limit(config, {"max_size_bytes": 2048}) == ["default.maxSize above 2KiB"]


def test_unused_server_settings_are_listed_if_given() -> None:
    config = loads('diskReserveSize = "16MiB"\nstorage = "memory:"\nmemcacheListenPort = 5\n')
    names = ("queue_path", "disk_reserve_size_bytes")
    assert server_settings_given(config, names) == ["diskReserveSize"]
    assert server_settings_given(loads(""), names) == server_settings_given(config, ()) == []
