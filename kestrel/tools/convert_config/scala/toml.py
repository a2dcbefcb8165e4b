"""Writing tables as readable TOML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def toml_lines(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a TOML file: single settings, then tables, then lists of tables."""
    yield from _settings(tables)
    for name, table in tables.items():
        if isinstance(table, dict) and table:
            yield from ("", f"[{name}]", *_settings(table))
    for name, listed in tables.items():
        if _is_tables(listed):
            for table in listed:
                yield from ("", f"[[{name}]]", *_settings(table))


def comment_lines(sentences: Iterable[str]) -> Iterator[str]:
    """Yield sentences as TOML comments."""
    for sentence in sentences:
        yield f"# {sentence}".rstrip()


def _settings(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        if not isinstance(value, dict) and not _is_tables(value):
            yield f"{name} = {_value(value)}"


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            # A JSON string is a TOML string, except for this character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
