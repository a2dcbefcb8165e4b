"""Spark options, whose names are case-insensitive, and the errors of the Spark integration."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from kestrel.config.units import parse_size
from kestrel.errors import KestrelError


class SourceFailed(KestrelError):
    """An option, path, column or server prevents reading or writing. The text says what to do."""


class BadJournal(KestrelError):
    """A damaged, incomplete or missing file in FAILFAST mode, or in a stream that would lose its rows for good."""


PATHS: Final = ("path", "paths")
"""Options that Spark sets itself for ``load(...)``; error messages do not list them."""

_TRUTHS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_BYTES: Final = re.compile(r"[0-9]{1,18}")


def has_paths(given: Mapping[str, str]) -> bool:
    """Return True if ``load(...)`` was given a path."""
    return any(name.lower() in PATHS for name in given)


def check_option_names(
    given: Mapping[str, str], names: Sequence[str], aliases: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the options under the spelling used in `names`. `aliases` maps other names to these.

    Raises `SourceFailed` for an unknown option, and for one that is given under two names.
    """
    known = {name.lower(): name for name in names}
    known |= {alias.lower(): name for alias, name in (aliases or {}).items()}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            told = ", ".join(each for each in names if each not in PATHS)
            hint = f"; did you mean {known[near[0]]}?" if near else f": the options are {told}"
            raise SourceFailed(f"there is no option {name}{hint}")
        ours = known[name.lower()]
        if ours in values:
            raise SourceFailed(f"{ours} is given twice, once under another name: leave out one of the two")
        values[ours] = value
    return values


def parse_choice(values: Mapping[str, str], name: str, *choices: str) -> str:
    """Return one of `choices`, compared without case; the first one is the default. Raises `SourceFailed`."""
    value = values.get(name, choices[0])
    for choice in choices:
        if value.lower() == choice.lower():
            return choice
    raise SourceFailed(f"{name} must be {' or '.join(choices)}, not {value!r}")


def parse_boolean(values: Mapping[str, str], name: str, default: bool) -> bool:
    """Return a true or false option. Raises `SourceFailed`."""
    value = values.get(name, str(default)).lower()
    if value not in _TRUTHS:
        raise SourceFailed(f"{name} must be true or false, not {value!r}")
    return _TRUTHS[value]


def parse_positive(values: Mapping[str, str], name: str, default: int) -> int:
    """Return an integer option from 1 to 999,999,999. Raises `SourceFailed`."""
    value = values.get(name, str(default))
    if not _NUMBER.fullmatch(value) or not int(value):
        raise SourceFailed(f"{name} must be a whole number of at least 1, not {value!r}")
    return int(value)


def parse_size_option(values: Mapping[str, str], name: str, default: int) -> int:
    """Return a size in bytes, written as a number or as a size such as ``16MiB``. Raises `SourceFailed`."""
    value = values.get(name)
    if value is None:
        return default
    try:
        return parse_size(int(value) if _BYTES.fullmatch(value) else value)
    except ValueError as error:
        raise SourceFailed(f"{name}: {error}") from None


STARTING_OFFSETS: Final = "startingOffsets"


def parse_start_ms(values: Mapping[str, str]) -> float:
    """Return the time of the first items of a new stream in ms since 1970: 0 for all items, infinity for future items.

    Raises `SourceFailed`.
    """
    value = values.get(STARTING_OFFSETS, "earliest")
    match value.lower():
        case "earliest":
            return 0
        case "latest":
            return math.inf
    time_s = parse_time_s(values, STARTING_OFFSETS, "earliest, latest or a time")
    assert time_s is not None
    return max(0, time_s * 1000)


def parse_time_s(values: Mapping[str, str], name: str, kinds: str = "a time") -> float | None:
    """Return a time in seconds since 1970, in UTC unless the text has an offset. `kinds` are the possible values.

    Raises `SourceFailed`.
    """
    value = values.get(name)
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise SourceFailed(f"{name} must be {kinds} such as 2026-01-31T12:00:00, in UTC, not {value!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
