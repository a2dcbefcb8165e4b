"""Queues inherit settings from their parents and from the default."""

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


def test_a_queue_inherits_unset_settings_from_the_default() -> None:
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


def test_a_child_of_a_fanout_only_queue_keeps_items() -> None:
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


def test_generated_settings_cover_every_field() -> None:
    assert set(QUEUE_VALUES) == set(settings_of(QueueSettings))


TABLES_BY_QUEUE = {
    b"other": ["default"],
    b"other+x": ["default"],
    b"work": ["work", "default"],
    b"worker": ["default"],
    b"work+x": ["work", "default"],
    b"work+x+y": ["work", "default"],
    b"work+audit": ["work+audit", "work", "default"],
    b"lone": ["default"],
    b"lone+child": ["lone+child", "default"],
    b"lone+other": ["default"],
    b"+x": ["+x", "default"],
    b"+y": ["default"],
}
"""The tables that set a queue, the nearest first."""


@given(st.fixed_dictionaries(dict.fromkeys(("default", "work", "work+audit", "lone+child", "+x"), queue_overrides)))
def test_setting_comes_from_nearest_table(tables: dict[str, dict[str, Any]]) -> None:
    overrides = {name.encode(): QueueOverrides(values) for name, values in tables.items()}
    default = overrides.pop(b"default")
    settings_for = QueueSettingsResolver(Config(default=default, queues=overrides)).settings_for
    for name, names_of_tables in TABLES_BY_QUEUE.items():
        for field in settings_of(QueueSettings):
            found = [tables[table][field] for table in names_of_tables if field in tables[table]]
            expected = [*found, getattr(QueueSettings(), field)][0]
            if field == "fanout_only" and b"+" in name[1:]:
                expected = False
            assert getattr(settings_for(name), field) == expected


@given(st.binary(max_size=200))
def test_unconfigured_names_share_existing_settings_objects(name: bytes) -> None:
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
