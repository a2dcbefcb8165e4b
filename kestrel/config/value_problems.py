"""Problems of single values of a file: cattrs' tree of exceptions as sentences with paths."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import attrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError

from kestrel.config.model import AdminSettings, Config, LoggingSettings, QueueSettings, TlsSettings, ZooKeeperSettings
from kestrel.config.setting import settings_of
from kestrel.config.setting_paths import entry_path, setting_path
from kestrel.config.value_text import MAX_SHOWN_CHARACTERS

_PLACES: list[tuple[type[attrs.AttrsInstance], str]] = [
    (Config, "above the first [table]"),
    (QueueSettings, "in [default] or in a [[queues]] table"),
    (AdminSettings, "in [admin]"),
    (TlsSettings, "in [tls]"),
    (ZooKeeperSettings, "in [zookeeper]"),
    (LoggingSettings, "in [logging]"),
]


def value_problems(error: Exception, value: Any, path: str = "") -> Iterator[str]:
    """Yield a sentence for each problem in the exception. `value` is the value that was read, at `path`."""
    match error:
        case ClassValidationError():
            yield from _problems_in_table(error, value, path)
        case IterableValidationError():
            for each, note in error.group_exceptions()[0]:
                entry = value[note.index]
                yield from value_problems(each, entry, entry_path(path, _name_of(entry) or int(note.index)))
        case KeyError():
            yield f"{path}: is missing"
        case _:
            yield f"{path}: {error}"


def _problems_in_table(error: ClassValidationError, table: Any, path: str) -> Iterator[str]:
    settings = settings_of(error.cl)
    of_fields, others = error.group_exceptions()
    for each, note in of_fields:
        name = settings[note.name].kestrel_name
        yield from value_problems(each, table.get(name), setting_path(path, name))
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
