"""The loading of a file into a `Config`. A file with mistakes is refused, with all mistakes in one error."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import attrs

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
    TABLE,
    TABLE_NAME,
    TABLES,
    checked_table,
    checked_tables,
    described,
    settings_of,
)
from kestrel.config.units import MAX_SHOWN_CHARACTERS, entry_path, setting_path, show_value
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
    reader = _TableReader()
    config = reader.section(Config, tables, "")
    problems = [*reader.problems, *_cross_table_problems(tables)]
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


# Tables as settings.

_AnySection = TypeVar("_AnySection", bound=Section)

_PLACES: list[tuple[type[attrs.AttrsInstance], str]] = [
    (Config, "above the first [table]"),
    (QueueSettings, "in [default] or in a [[queues]] table"),
    (AdminSettings, "in [admin]"),
    (TlsSettings, "in [tls]"),
    (ZooKeeperSettings, "in [zookeeper]"),
    (LoggingSettings, "in [logging]"),
]


@attrs.frozen(kw_only=True)
class _QueueTable(QueueSettings):
    """A ``[[queues]]`` table."""

    name: bytes = attrs.field(metadata=described("name", TABLE_NAME))


class _TableReader:
    """A reader of TOML's tables. It adds a sentence for each mistake to `problems`, and returns None in its place."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def values(self, cls: type[attrs.AttrsInstance], value: object, path: str) -> dict[str, Any]:
        """Return the settings that the table at `path` gives, by the field's name in `cls`."""
        values: dict[str, Any] = {}
        table = self._parse(checked_table, value, path)
        if table is None:
            return values
        table = dict(table)
        required = {field.name for field in attrs.fields(cls) if field.default is attrs.NOTHING}
        for field, setting in settings_of(cls).items():
            place = setting_path(path, setting.kestrel_name)
            if setting.kestrel_name in table:
                given = table.pop(setting.kestrel_name)
                if setting.kind in (TABLE, TABLES):
                    values[field] = _NESTED[field](self, given, place)
                else:
                    values[field] = self._parse(setting.kind.parse, given, place)
            elif field in required:
                self.problems.append(f"{place}: is missing")
        for name in sorted(table):
            self.problems.append(f"{setting_path(path, name)}: unknown setting{_hint(name, cls)}")
        return values

    def _parse(self, parse: Callable[[object], Any], value: object, path: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            self.problems.append(f"{path}: {error}")
            return None

    def section(self, cls: type[_AnySection], value: object, path: str) -> _AnySection | None:
        """Return the table at `path` as a section that knows which of its settings the table gives."""
        before = len(self.problems)
        values = self.values(cls, value, path)
        return cls(**values, given=frozenset(values)) if len(self.problems) == before else None

    def overrides(self, value: object, path: str) -> QueueOverrides:
        """Return the settings of ``[default]``."""
        return QueueOverrides(self.values(QueueSettings, value, path))

    def queues(self, value: object, path: str) -> dict[bytes, QueueOverrides]:
        """Return the settings of the ``[[queues]]`` tables, by name."""
        tables = [self.values(_QueueTable, entry, place) for place, entry in self._entries(value, path)]
        return {table.pop("name", b""): QueueOverrides(table) for table in tables}

    def aliases(self, value: object, path: str) -> dict[bytes, AliasSettings]:
        """Return the ``[[aliases]]`` tables, by name."""
        aliases = {}
        for place, entry in self._entries(value, path):
            before = len(self.problems)
            values = self.values(AliasSettings, entry, place)
            if len(self.problems) == before:
                aliases[values["name"]] = AliasSettings(**values)
        return aliases

    def _entries(self, value: object, path: str) -> Iterator[tuple[str, object]]:
        for index, entry in enumerate(self._parse(checked_tables, value, path) or ()):
            name = entry.get("name") if isinstance(entry, dict) else None
            yield entry_path(path, name if name and isinstance(name, str) else index), entry


def _section_reader(cls: type[Section]) -> Callable[[_TableReader, object, str], Section | None]:
    return lambda reader, value, path: reader.section(cls, value, path)


_NESTED: Final[Mapping[str, Callable[[_TableReader, object, str], Any]]] = {
    "default": _TableReader.overrides,
    "queues": _TableReader.queues,
    "aliases": _TableReader.aliases,
    "admin": _section_reader(AdminSettings),
    "tls": _section_reader(TlsSettings),
    "zookeeper": _section_reader(ZooKeeperSettings),
    "logging": _section_reader(LoggingSettings),
}
"""The readers of the tables in a configuration, by the field's name in `Config`."""


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
