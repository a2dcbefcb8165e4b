"""Validation of the arguments that a program passes to its queues."""

from __future__ import annotations

import os
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from kestrel.config.model import QueueSettings
from kestrel.config.setting import settings_of
from kestrel.names import check_queue_name

FolderPath: TypeAlias = "str | bytes | os.PathLike[str]"

MAX_TIME_MS: Final = (1 << 63) - 1
"""Largest time that the records of both journal formats can store."""


def check_name(name: object) -> None:
    """Raise TypeError or `BadQueueName` unless `name` is a valid queue name."""
    if not isinstance(name, bytes):
        raise TypeError(f"a queue's name must be bytes, such as b'work', not {name!r}")
    check_queue_name(name)


def check_item(data: object, expiry_ms: object) -> None:
    """Raise TypeError or ValueError unless `data` and `expiry_ms` are valid for an item."""
    if not isinstance(data, bytes):
        raise TypeError(f"an item must be bytes, not {type(data).__name__}")
    check_time("expiry_ms", expiry_ms)


def check_time(what: str, time_ms: object) -> None:
    """Raise TypeError or ValueError unless `time_ms` fits in a journal record. `what` names it in the error."""
    if not isinstance(time_ms, int):
        raise TypeError(f"{what} must be a whole number of milliseconds since the epoch, not {time_ms!r}")
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise ValueError(f"{what} must be milliseconds since the epoch, from 0 to {MAX_TIME_MS}, not {time_ms}")


def check_settings(name: bytes, settings: QueueSettings) -> QueueSettings:
    """Return `settings`. Raise TypeError or ValueError if a value is one that a configuration file cannot set."""
    for field, setting in settings_of(QueueSettings).items():
        value = getattr(settings, field)
        kinds = _KINDS_OF_VALUES[field]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise TypeError(f"{field} ({setting.kestrel_name}) must be {names}, not {value!r}")
    if name in (settings.expire_to_queue, settings.error_queue):
        raise ValueError(f"the items of queue {name!r} would move to itself")
    return settings


def _kinds_of(hint: Any) -> tuple[type, ...]:
    return tuple(get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))


_KINDS_OF_VALUES: Final = {name: _kinds_of(hint) for name, hint in get_type_hints(QueueSettings).items()}
