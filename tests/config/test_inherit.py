"""Which settings a queue gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.inherit import QueueSettingsResolver
from kestrel.config.load import loads
from kestrel.config.model import Config, QueueSettings


def resolver(text: str) -> QueueSettingsResolver:
    return QueueSettingsResolver(loads(text))


def test_without_a_file_every_queue_has_the_built_in_settings() -> None:
    settings_for = QueueSettingsResolver(Config()).settings_for
    assert settings_for(b"any") == settings_for(b"any+child") == QueueSettings()


def test_a_queue_inherits_from_the_default_what_it_does_not_set() -> None:
    settings = resolver(
        """
        [default]
        maxItems = 10
        maxAge = "1m"
        [[queues]]
        name = "work"
        maxItems = 20
        """
    ).settings_for(b"work")
    assert (settings.max_items, settings.max_age_ms) == (20, 60_000)
    assert settings.max_memory_size_bytes == 128 * 2**20


def test_a_child_inherits_from_its_parent_before_the_default() -> None:
    settings = resolver(
        """
        [default]
        maxItems = 1
        maxSize = 1
        maxAge = 1
        [[queues]]
        name = "work+audit"
        maxItems = 3
        [[queues]]
        name = "work"
        maxItems = 2
        maxSize = 2
        """
    ).settings_for(b"work+audit")
    assert (settings.max_items, settings.max_size_bytes, settings.max_age_ms) == (3, 2, 1_000)


def test_a_child_that_the_file_does_not_mention_is_set_as_its_parent() -> None:
    settings_for = resolver(
        """
        [[queues]]
        name = "work"
        maxItems = 2
        """
    ).settings_for
    assert settings_for(b"work+new").max_items == 2
    assert settings_for(b"work+new+er").max_items == 2
    assert settings_for(b"worker").max_items is None


def test_a_name_with_nothing_before_the_plus_has_no_parent() -> None:
    settings_for = resolver(
        """
        [default]
        maxItems = 1
        [[queues]]
        name = "+x"
        maxItems = 2
        """
    ).settings_for
    assert settings_for(b"+x").max_items == 2
    assert settings_for(b"+y").max_items == 1


def test_a_value_set_to_none_wins_over_the_default() -> None:
    settings_for = resolver(
        """
        [default]
        maxAge = "1h"
        syncJournal = 0
        [[queues]]
        name = "work"
        maxAge = "none"
        syncJournal = "never"
        """
    ).settings_for
    assert (settings_for(b"work").max_age_ms, settings_for(b"work").sync_journal_ms) == (None, None)
    assert (settings_for(b"other").max_age_ms, settings_for(b"other").sync_journal_ms) == (3_600_000, 0)


def test_a_value_set_to_none_wins_over_the_parent() -> None:
    settings_for = resolver(
        """
        [[queues]]
        name = "work"
        maxAge = "1h"
        [[queues]]
        name = "work+audit"
        maxAge = "none"
        """
    ).settings_for
    assert settings_for(b"work+audit").max_age_ms is None
    assert settings_for(b"work+other").max_age_ms == 3_600_000


def test_a_value_set_to_its_built_in_default_wins_over_the_default_table() -> None:
    settings_for = resolver(
        """
        [default]
        keepJournal = false
        [[queues]]
        name = "work"
        keepJournal = true
        """
    ).settings_for
    assert settings_for(b"work").keep_journal
    assert not settings_for(b"other").keep_journal


def test_a_child_keeps_items_though_its_parent_is_fanout_only() -> None:
    settings_for = resolver(
        """
        [default]
        fanoutOnly = true
        [[queues]]
        name = "work"
        maxItems = 2
        [[queues]]
        name = "work+audit"
        fanoutOnly = true
        """
    ).settings_for
    assert settings_for(b"work").fanout_only
    assert settings_for(b"other").fanout_only
    assert not settings_for(b"work+audit").fanout_only
    assert not settings_for(b"work+new").fanout_only
    assert not settings_for(b"other+new").fanout_only
    assert settings_for(b"work+new").max_items == 2


@given(st.binary(max_size=200))
def test_names_that_clients_think_of_make_no_new_settings(name: bytes) -> None:
    settings = SOME.settings_for(name)
    assert any(settings is known for known in map(SOME.settings_for, (b"work", b"work+audit", b"x", b"x+y")))


SOME = resolver(
    """
    [default]
    fanoutOnly = true
    [[queues]]
    name = "work"
    maxItems = 2
    [[queues]]
    name = "work+audit"
    """
)
