"""What a program hands to its queues: checked at once, and not when it is too late."""

from __future__ import annotations

import os
from types import UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from kestrel.config.model import QueueSettings
from kestrel.config.setting import settings_of
from kestrel.names import check_queue_name

FolderPath: TypeAlias = "str | bytes | os.PathLike[str]"

MAX_TIME_MS: Final = (1 << 63) - 1
"""What the records of both kinds of journals have place for."""


def check_name(name: object) -> None:
    """Raise TypeError, or `BadQueueName`, unless a queue can have that name."""
    if not isinstance(name, bytes):
        raise TypeError(f"a queue's name is bytes, as in b'work', and not {name!r}")
    check_queue_name(name)


def check_item(data: object, expiry_ms: object) -> None:
    """Raise TypeError or ValueError unless that can be an item's data and its expiry."""
    if not isinstance(data, bytes):
        raise TypeError(f"an item is bytes, and not {type(data).__name__}")
    check_time("expiry_ms", expiry_ms)


def check_time(what: str, time_ms: object) -> None:
    """Raise TypeError or ValueError unless that is a time that a record can hold."""
    if not isinstance(time_ms, int):
        raise TypeError(f"{what} is a whole number of milliseconds since the epoch, and not {time_ms!r}")
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise ValueError(f"{what} is milliseconds since the epoch, from 0 to {MAX_TIME_MS}, and not {time_ms}")


def check_settings(name: bytes, settings: QueueSettings) -> QueueSettings:
    """The settings, unless one has a value that no file could have given it: then TypeError or ValueError."""
    for field, setting in settings_of(QueueSettings).items():
        value = getattr(settings, field)
        kinds = _KINDS_OF_VALUES[field]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise TypeError(f"{field} ({setting.kestrel_name}) is {names}, and not {value!r}")
    if name in (settings.expire_to_queue, settings.error_queue):
        raise ValueError(f"the items of queue {name!r} would move to itself")
    return settings


def _kinds_of(hint: Any) -> tuple[type, ...]:
    return tuple(get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))


_KINDS_OF_VALUES: Final = {name: _kinds_of(hint) for name, hint in get_type_hints(QueueSettings).items()}
