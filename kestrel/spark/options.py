"""Spark options, whose names are case-insensitive, and the errors of the Spark integration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
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


def check_option_names(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the options under the spelling used in `names`. Raises `SourceFailed` for an unknown option."""
    known = {name.lower(): name for name in names}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            told = ", ".join(each for each in names if each not in PATHS)
            hint = f"; did you mean {known[near[0]]}?" if near else f": the options are {told}"
            raise SourceFailed(f"there is no option {name}{hint}")
        values[known[name.lower()]] = value
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
