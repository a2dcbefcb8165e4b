"""Which settings a queue gets."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kestrel.config.load import loads
from kestrel.config.model import Config, QueueOverrides, QueueSettings
from kestrel.config.resolved import QueueSettingsResolver
from kestrel.config.setting import settings_of
from tests.config.made import QUEUE_VALUES, queue_overrides


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


def test_a_child_whose_parent_the_file_does_not_mention_inherits_from_the_default() -> None:
    settings_for = resolver(
        """
        [default]
        maxItems = 1
        maxAge = 1
        [[queues]]
        name = "work+audit"
        maxItems = 3
        """
    ).settings_for
    assert (settings_for(b"work+audit").max_items, settings_for(b"work+audit").max_age_ms) == (3, 1_000)
    assert (settings_for(b"work+new").max_items, settings_for(b"work+new").max_age_ms) == (1, 1_000)


def test_a_child_inherits_nothing_from_its_siblings_and_a_parent_nothing_from_its_children() -> None:
    settings_for = resolver(
        """
        [[queues]]
        name = "work+audit"
        maxItems = 3
        """
    ).settings_for
    assert settings_for(b"work").max_items is None
    assert settings_for(b"work+other").max_items is None


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


def test_a_parents_none_wins_over_the_default_for_its_children_as_well() -> None:
    settings_for = resolver(
        """
        [default]
        maxAge = "1h"
        errorQueue = "dead"
        [[queues]]
        name = "work"
        maxAge = "none"
        [[queues]]
        name = "work+audit"
        [[queues]]
        name = "work+short"
        maxAge = "1m"
        [[queues]]
        name = "dead"
        errorQueue = "none"
        """
    ).settings_for
    assert settings_for(b"work+audit").max_age_ms is None
    assert settings_for(b"work+new").max_age_ms is None
    assert settings_for(b"work+short").max_age_ms == 60_000
    assert settings_for(b"work+new").error_queue == b"dead"
    assert settings_for(b"dead+new").error_queue is None


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


def test_every_setting_is_among_those_made_up_below() -> None:
    assert set(QUEUE_VALUES) == set(settings_of(QueueSettings))


FROM_NEAR_TO_FAR = {
    b"other": ["default"],
    b"other+x": ["default"],
    b"work": ["work", "default"],
    b"work+x": ["work", "default"],
    b"work+audit": ["work+audit", "work", "default"],
    b"lone+child": ["lone+child", "default"],
}


@given(st.fixed_dictionaries(dict.fromkeys(("default", "work", "work+audit", "lone+child"), queue_overrides)))
def test_each_setting_has_the_value_of_the_nearest_table_that_sets_it(tables: dict[str, dict[str, Any]]) -> None:
    overrides = {name.encode(): QueueOverrides(values) for name, values in tables.items()}
    default = overrides.pop(b"default")
    settings_for = QueueSettingsResolver(Config(default=default, queues=overrides)).settings_for
    for name, names_of_tables in FROM_NEAR_TO_FAR.items():
        for field in settings_of(QueueSettings):
            found = [tables[table][field] for table in names_of_tables if field in tables[table]]
            expected = [*found, getattr(QueueSettings(), field)][0]
            if field == "fanout_only" and b"+" in name:
                expected = False
            assert getattr(settings_for(name), field) == expected


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
