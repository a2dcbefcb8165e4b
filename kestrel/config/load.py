"""The loading of a file into a `Config`. A file with mistakes is refused, with all mistakes in one error."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from operator import eq
from typing import Any, Final, TypeVar

import attrs
from cattrs import Converter
from cattrs.errors import BaseValidationError, ClassValidationError, ForbiddenExtraKeysError, IterableValidationError
from cattrs.gen import make_dict_structure_fn, override

from kestrel.config.item_routes import ItemRoutes, find_cycles, named_tables
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
from kestrel.config.setting import (
    QUEUE_NAME,
    TABLE,
    TABLES,
    Setting,
    checked_table,
    checked_tables,
    described,
    settings_of,
)
from kestrel.config.value_text import MAX_SHOWN_CHARACTERS, entry_path, setting_path, show_value
from kestrel.errors import KestrelError


class ConfigError(KestrelError):
    """An invalid configuration. Its text is the source, with a line for each problem below it."""

    def __init__(self, source: str, *problems: str) -> None:
        super().__init__(source, *problems)
        self.source = source
        self.problems: tuple[str, ...] = problems
        """The problems. Each begins with the path of its setting, ``queues["work"].maxSize: ...``, if it has one."""

    def __str__(self) -> str:
        return "\n  ".join([f"{self.source}:", *self.problems])


def load(path: str | os.PathLike[str]) -> Config:
    """Return the configuration in a TOML file. Raises `ConfigError` if it is invalid or cannot be read."""
    source = os.fspath(path)
    try:
        with open(source, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(source, f"cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(source, f"line {line}: not UTF-8, which TOML is written in") from error
    return loads(text, source)


def loads(text: str, source: str = "configuration") -> Config:
    """Return the configuration in a TOML text. Raises `ConfigError`, which calls the text `source`."""
    tables = _parse(text, source)
    problems: list[str] = []
    config = None
    try:
        config = config_from_tables(tables)
    except BaseValidationError as error:
        problems += _value_problems(error, tables)
    problems += _cross_table_problems(tables)
    if config is None or problems:
        raise ConfigError(source, *problems)
    return config


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, _syntax_problem(str(error), text)) from error
    except RecursionError:
        raise ConfigError(source, "not usable TOML: brackets are nested too deeply") from None
    except ValueError as error:  # Python refuses numbers of more than some thousand digits
        raise ConfigError(source, f"not usable TOML: {error}") from error


def _syntax_problem(message: str, text: str) -> str:
    place = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if place is None:
        return f"not TOML: {message}"
    what, line, column = place.groups()
    if line is None:
        return f"line {text.count(chr(10)) + 1}, the end: {what}"
    return f"line {line}, column {column}: {what}"


# Problems of single values: cattrs' tree of exceptions as sentences with paths.

_PLACES: list[tuple[type[attrs.AttrsInstance], str]] = [
    (Config, "above the first [table]"),
    (QueueSettings, "in [default] or in a [[queues]] table"),
    (AdminSettings, "in [admin]"),
    (TlsSettings, "in [tls]"),
    (ZooKeeperSettings, "in [zookeeper]"),
    (LoggingSettings, "in [logging]"),
]


def _value_problems(error: Exception, value: Any, path: str = "") -> Iterator[str]:
    """Yield a sentence for each problem in the exception. `value` is the value that was read, at `path`."""
    match error:
        case ClassValidationError():
            yield from _problems_in_table(error, value, path)
        case IterableValidationError():
            for each, note in error.group_exceptions()[0]:
                entry = value[note.index]
                yield from _value_problems(each, entry, entry_path(path, _name_of(entry) or int(note.index)))
        case KeyError():
            yield f"{path}: is missing"
        case _:
            yield f"{path}: {error}"


def _problems_in_table(error: ClassValidationError, table: Any, path: str) -> Iterator[str]:
    settings = settings_of(error.cl)
    of_fields, others = error.group_exceptions()
    for each, note in of_fields:
        name = settings[note.name].kestrel_name
        yield from _value_problems(each, table.get(name), setting_path(path, name))
    for each in others:
        if isinstance(each, ForbiddenExtraKeysError):
            for name in sorted(each.extra_fields):
                yield f"{setting_path(path, name)}: unknown setting{_hint(name, error.cl)}"
        else:
            yield f"{path}: {each}"


def _name_of(entry: object) -> str | None:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else None


def _hint(name: str, cls: type[attrs.AttrsInstance]) -> str:
    # A setting easily ends up in the wrong table, because a table includes all lines below its header.
    for other, place in _PLACES:
        if name in _names(other) and name not in _names(cls):
            return f"; it belongs {place}"
    names = {_folded(known): known for known in _names(cls)}
    close = get_close_matches(_folded(name[:MAX_SHOWN_CHARACTERS]), names, n=1)
    return f"; did you mean {names[close[0]]}?" if close else ""


def _names(cls: type[attrs.AttrsInstance]) -> list[str]:
    return [setting.kestrel_name for setting in settings_of(cls).values()]


def _folded(name: str) -> str:
    """Return the name without the differences between maxItems, max_items and max-items."""
    return name.lower().replace("_", "").replace("-", "")


# Problems between the tables: duplicate names and cycles of items.


def _cross_table_problems(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each problem between the tables."""
    yield from _duplicate_name_problems(tables, "queues")
    yield from _duplicate_name_problems(tables, "aliases")
    routes = ItemRoutes(tables)
    yield from _cycle_problems(routes)
    for path, name in routes.own_error_queues():
        yield f'{path}: items would move from {show_value(name)} to itself; end it by errorQueue = "none" on that queue'


def _duplicate_name_problems(tables: Mapping[str, Any], path: str) -> Iterator[str]:
    seen: set[str] = set()
    for name, _ in named_tables(tables, path):
        if name in seen:
            yield f"{setting_path(entry_path(path, name), 'name')}: another [[{path}]] table has that name"
        seen.add(name)


def _cycle_problems(routes: ItemRoutes) -> Iterator[str]:
    for circle in find_cycles(routes.by_name()):
        way = " -> ".join(show_value(name) for name in (*circle, circle[0]))
        expiry = next(filter(None, map(routes.expiry_setting_path, circle)), None)
        if expiry is None:
            path = setting_path(entry_path("aliases", circle[0]), "destinationQueues")
            yield f"{path}: these aliases form a cycle: {way}"
        else:
            yield (
                f"{expiry}: expired items would move in a cycle: {way}; "
                'end it by expireToQueue = "none" on one of these queues'
            )


# The conversion of TOML's tables by cattrs. Problems of single values are collected in one tree of exceptions.

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
