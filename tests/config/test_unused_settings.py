"""Settings that a file gives and that its storage does not go by are named, and no others."""

from __future__ import annotations

from kestrel.config.load import loads
from kestrel.config.unused_settings import (
    queue_settings_given,
    queue_settings_over_limit,
    server_settings_given,
)


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
    assert queue_settings_over_limit(config, most) == named
    assert queue_settings_over_limit(config, {}) == queue_settings_over_limit(loads(""), most) == []


def test_what_is_set_to_no_bound_at_all_is_beyond_any() -> None:
    config = loads('[default]\nmaxSize = "none"\n[[queues]]\nname = "a"\nmaxSize = "1KiB"\n')
    assert queue_settings_over_limit(config, {"max_size_bytes": 2048}) == ["default.maxSize above 2KiB"]


def test_of_some_settings_of_the_server_those_are_named_that_are_given() -> None:
    config = loads('diskReserveSize = "16MiB"\nstorage = "memory:"\nmemcacheListenPort = 5\n')
    names = ("queue_path", "disk_reserve_size_bytes")
    assert server_settings_given(config, names) == ["diskReserveSize"]
    assert server_settings_given(loads(""), names) == server_settings_given(config, ()) == []
