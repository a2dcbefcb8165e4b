"""The conversion of TOML's tables to a `Config` by cattrs.

Problems of single values are collected in one tree of exceptions, which `kestrel.config.value_problems` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import eq
from typing import Any, Final, TypeVar

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, override

from kestrel.config.model import (
    AdminSettings,
    AliasSettings,
    Config,
    LoggingSettings,
    QueueOverrides,
    QueueSettings,
    Section,
    TlsSettings,
    ZooKeeperSettings,
)
from kestrel.config.setting import Setting, described, settings_of
from kestrel.config.setting_kinds import QUEUE_NAME, TABLE, TABLES, checked_table, checked_tables

_Settings = TypeVar("_Settings", bound=attrs.AttrsInstance)
_AnySection = TypeVar("_AnySection", bound=Section)


def config_from_tables(tables: Mapping[str, object]) -> Config:
    """Return the configuration in these tables. Raises cattrs' `BaseValidationError`, a tree of all mistakes."""
    return _CONVERTER.structure(tables, Config)


@attrs.frozen(kw_only=True)
class _QueueTable(QueueSettings):
    """A ``[[queues]]`` table as an intermediate step, with the built-in defaults for missing settings."""

    name: bytes = attrs.field(metadata=described("name", QUEUE_NAME, "The queue's name."))


def _plain_hook(cls: type[_Settings]) -> Callable[[object, object], _Settings]:
    """Return a hook that parses each setting, under Kestrel's name, by its kind."""
    settings = settings_of(cls)
    fields: dict[str, Any] = {
        field.name: _read_as(settings[field.name]) if field.name in settings else override(omit=True)
        for field in attrs.fields(cls)
    }
    from_dict = make_dict_structure_fn(
        cls, _CONVERTER, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **fields
    )
    return lambda value, _: from_dict(checked_table(value), cls)


def _read_as(setting: Setting) -> Any:
    if setting.kind in (TABLE, TABLES):
        return override(rename=setting.kestrel_name, struct_hook=_CONVERTER.structure)
    return override(rename=setting.kestrel_name, struct_hook=lambda value, _: setting.kind.parse(value))


def _section_hook(cls: type[_AnySection]) -> Callable[[object, object], _AnySection]:
    """Return a hook like `_plain_hook` that also stores which settings the table gives."""
    from_table = _plain_hook(cls)

    def hook(value: object, type_: object) -> _AnySection:
        made = from_table(value, type_)
        return attrs.evolve(made, given=frozenset(_given(cls, value)))

    return hook


def _given(cls: type[attrs.AttrsInstance], table: object) -> list[str]:
    named = checked_table(table)
    return [name for name, setting in settings_of(cls).items() if setting.kestrel_name in named]


def _overrides(made: QueueSettings, table: object) -> QueueOverrides:
    return QueueOverrides({name: getattr(made, name) for name in _given(QueueSettings, table)})


def _default_hook(value: object, _: object) -> QueueOverrides:
    return _overrides(_CONVERTER.structure(value, QueueSettings), value)


def _queues_hook(value: object, _: object) -> dict[bytes, QueueOverrides]:
    tables = checked_tables(value)
    made = _CONVERTER.structure(tables, list[_QueueTable])
    return {queue.name: _overrides(queue, table) for queue, table in zip(made, tables, strict=True)}


def _aliases_hook(value: object, _: object) -> dict[bytes, AliasSettings]:
    made = _CONVERTER.structure(checked_tables(value), list[AliasSettings])
    return {alias.name: alias for alias in made}


_CONVERTER: Final = Converter()
_HOOKS: Final[list[tuple[Any, Callable[[Any, Any], Any]]]] = [
    (QueueSettings, _plain_hook(QueueSettings)),
    (_QueueTable, _plain_hook(_QueueTable)),
    (AliasSettings, _plain_hook(AliasSettings)),
    (AdminSettings, _section_hook(AdminSettings)),
    (TlsSettings, _section_hook(TlsSettings)),
    (ZooKeeperSettings, _section_hook(ZooKeeperSettings)),
    (LoggingSettings, _section_hook(LoggingSettings)),
    (Config, _section_hook(Config)),
    (QueueOverrides, _default_hook),
    (Mapping[bytes, QueueOverrides], _queues_hook),
    (Mapping[bytes, AliasSettings], _aliases_hook),
]
for _type, _hook in _HOOKS:
    _CONVERTER.register_structure_hook_func(partial(eq, _type), _hook)
