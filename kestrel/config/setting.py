"""The description of a setting, stored at its field: Kestrel's name and the kind of value.

A kind's `parse` takes a value from TOML, and raises `ValueError` with a sentence: what is wrong, and often a valid
example. No type is accepted for another: true is not 1. Its `show` is the inverse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, TypeVar

import attrs

from kestrel.config.units import format_duration_ms, format_size, parse_duration_ms, parse_size, show_value
from kestrel.errors import BadQueueName
from kestrel.escaping import show_name, show_names
from kestrel.names import DELAYED_QUEUE, check_queue_name

T = TypeVar("T")

KEY: Final = "kestrel.setting"
"""Key of a field's metadata for its `Setting`."""


@attrs.frozen
class Setting:
    """The description of one setting."""

    kestrel_name: str
    kind: SettingKind


def setting(kestrel_name: str, kind: SettingKind, default: T, *, repr: bool = True) -> T:
    """Return a field with a default that `settings_of` finds. `repr` is as for `attrs.field`."""
    field: T = attrs.field(default=default, repr=repr, metadata=described(kestrel_name, kind))
    return field


def described(kestrel_name: str, kind: SettingKind) -> dict[str, Setting]:
    """Return metadata for `attrs.field`, for a setting without a default."""
    return {KEY: Setting(kestrel_name, kind)}


def settings_of(cls: type[attrs.AttrsInstance]) -> Mapping[str, Setting]:
    """Return the settings among the fields of a class, by the field's name, in order."""
    return {field.name: field.metadata[KEY] for field in attrs.fields(cls) if KEY in field.metadata}


MAX_COUNT: Final = 2**31 - 1
"""Counts are signed 32-bit numbers, as in Kestrel and on the wire."""

MAX_PORT: Final = 65535


@attrs.frozen
class SettingKind:
    """A kind of setting: its parser, its display, and whether its values have units."""

    parse: Callable[[object], Any] = attrs.field(repr=False)
    show: Callable[[Any], str] = attrs.field(default=str, repr=False)
    """Function that shows a value as in a file, without quotes and brackets. Members of a list are separated by commas.
    Names are bytes, and each byte is shown as the character of that number (Latin-1). A table has no such text.
    """
    quantity: Literal["size", "duration"] | None = None
    """The dimension of values with a unit."""


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{show_value(value)} is neither true nor false (written without quotes)")
    return value


def _show_boolean(value: bool) -> str:
    return "true" if value else "false"


def _quoted(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{show_value(value)} is not a text in quotes")
    return value


def _text(value: object) -> str:
    text = _quoted(value)
    if not text or "\0" in text:
        raise ValueError(f"{show_value(text)} is empty or holds a NUL")
    return text


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{show_value(value)} is not a whole number")
    if not 1 <= value <= MAX_COUNT:
        raise ValueError(f"{show_value(value)} is not between 1 and {MAX_COUNT}")
    return value


def _port_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PORT:
        raise ValueError(f"{show_value(value)} is not a port number from 1 to {MAX_PORT}")
    return value


def _port(value: object) -> int | None:
    if value == "none" or (isinstance(value, int) and value == 0):  # false is an int and equals 0
        return None
    try:
        return _port_number(value)
    except ValueError as error:
        raise ValueError(f"{error}; or false for no port") from None


def _show_port(port: int | None) -> str:
    return "false" if port is None else str(port)


def _positive(parse: Callable[[object], int]) -> Callable[[object], int]:
    def parse_positive(value: object) -> int:
        parsed = parse(value)
        if parsed == 0:
            raise ValueError(f"{show_value(value)} is not greater than 0")
        return parsed

    return parse_positive


def _table_name(value: object) -> bytes:
    name = _quoted(value).encode()
    try:
        check_queue_name(name)
    except BadQueueName as error:
        raise ValueError(str(error)) from None
    return name


def _queue_name(value: object) -> bytes:
    name = _table_name(value)
    if name == DELAYED_QUEUE:
        raise ValueError(f"the name {show_name(name)} is reserved for delayed items")
    return name


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{show_value(value)} is not a list in square brackets")
    return value


def _queue_names(value: object) -> tuple[bytes, ...]:
    if not _list(value):
        raise ValueError("the list is empty: at least one queue is needed")
    return tuple(_queue_name(name) for name in _list(value))


def _identities(value: object) -> tuple[bytes, ...]:
    names = [value] if isinstance(value, str) else _list(value)
    return tuple(_text(name).encode() for name in names)


def _show_identities(identities: tuple[bytes, ...]) -> str:
    return b",".join(identities).decode("utf-8", "backslashreplace")


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(each) for each in _list(value))


def _digests(value: object) -> tuple[str, ...]:
    digests = _texts(value)
    for each in digests:
        if not re.fullmatch("[0-9a-f]{64}", each):
            # The value is not shown, because it may be the token itself.
            raise ValueError("a value is not a SHA-256 digest of 64 small hexadecimal digits")
        if each == sha256().hexdigest():
            raise ValueError("a value is the digest of an empty token: create the token again")
    return digests


BOOLEAN: Final = SettingKind(_boolean, _show_boolean)
TEXT: Final = SettingKind(_text)
TEXTS: Final = SettingKind(_texts, ",".join)
DIGESTS: Final = SettingKind(_digests, ",".join)
PATH: Final = SettingKind(_text)
COUNT: Final = SettingKind(_count)
PORT_NUMBER: Final = SettingKind(_port_number)
PORT: Final = SettingKind(_port, _show_port)
SIZE: Final = SettingKind(_positive(parse_size), format_size, "size")
SIZE_OR_ZERO: Final = SettingKind(parse_size, format_size, "size")
DURATION: Final = SettingKind(_positive(parse_duration_ms), format_duration_ms, "duration")
DURATION_OR_ZERO: Final = SettingKind(parse_duration_ms, format_duration_ms, "duration")
TABLE_NAME: Final = SettingKind(_table_name, show_name)
"""The name of a ``[[queues]]`` table, which may also be that of the hidden queue of delayed items."""
QUEUE_NAME: Final = SettingKind(_queue_name, show_name)
QUEUE_NAMES: Final = SettingKind(_queue_names, show_names)
IDENTITIES: Final = SettingKind(_identities, _show_identities)


def optional(kind: SettingKind, *words: str) -> SettingKind:
    """Return a kind that also accepts ``"none"`` or one of `words` for None, which it shows as the first of them."""
    words = (*words, "none")
    in_quotes = " or ".join(f'"{word}"' for word in words)

    def parse(value: object) -> Any:
        if isinstance(value, str) and value in words:
            return None
        try:
            return kind.parse(value)
        except ValueError as error:
            raise ValueError(f"{error}; or {in_quotes}") from None

    def show(value: Any) -> str:
        return words[0] if value is None else kind.show(value)

    return SettingKind(parse, show, kind.quantity)


def one_of(*words: str) -> SettingKind:
    """Return the kind of one of these words. Its parser ignores case, and returns the word as it is given here."""
    by_small_letters = {word.lower(): word for word in words}
    in_quotes = ", ".join(f'"{word}"' for word in words)

    def parse(value: object) -> str:
        word = by_small_letters.get(value.lower()) if isinstance(value, str) else None
        if word is None:
            raise ValueError(f"{show_value(value)} is none of {in_quotes}")
        return word

    return SettingKind(parse)


def matching(name: str, pattern: str, example: str) -> SettingKind:
    """Return the kind of a text that matches a pattern as a whole. Its error messages have `name` and `example`."""
    compiled = re.compile(pattern)

    def parse(value: object) -> str:
        text = _text(value)
        if not compiled.fullmatch(text):
            raise ValueError(f"{show_value(text)} is not a {name}; write for example {show_value(example)}")
        return text

    return SettingKind(parse)


def secret(name: str, pattern: str, example: str) -> SettingKind:
    """Return a kind as `matching` does, whose error messages never show the given value."""
    kind = matching(name, pattern, example)

    def parse(value: object) -> Any:
        try:
            return kind.parse(value)
        except ValueError:
            raise ValueError(f"the value is not a {name}; write for example {show_value(example)}") from None

    return SettingKind(parse)


def table_of(kind: SettingKind) -> SettingKind:
    """Return the kind of a table from arbitrary names to values of one kind."""

    def parse(value: object) -> dict[str, Any]:
        parsed = {}
        for name, each in checked_table(value).items():
            try:
                parsed[name] = kind.parse(each)
            except ValueError as error:
                raise ValueError(f"{show_value(name)}: {error}") from None
        return parsed

    return SettingKind(parse)


def checked_table(value: object) -> dict[str, object]:
    """Return the value if it is a table, or raise ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{show_value(value)} is not a table")
    return value


def checked_tables(value: object) -> list[object]:
    """Return the value if it is a list, or raise ValueError. The members are not checked."""
    if not isinstance(value, list):
        raise ValueError(f"{show_value(value)} is not a list of tables, whose heads have two brackets: [[queues]]")
    return value


TABLE: Final = SettingKind(checked_table)
TABLES: Final = SettingKind(checked_tables)
