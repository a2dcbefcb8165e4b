"""Spark's options, as a person gives them: names in any case, values as text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from kestrel.config.units import parse_size
from kestrel.spark.failures import SourceFailed

PATHS: Final = ("path", "paths")
"""What Spark itself gives for ``load(...)``: nobody is told of these as options."""

_TRUTHS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_BYTES: Final = re.compile(r"[0-9]{1,18}")


def has_paths(given: Mapping[str, str]) -> bool:
    """Whether there was something in ``load(...)``."""
    return any(name.lower() in PATHS for name in given)


def check_option_names(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The values by their names as they are in `names`. Raises `SourceFailed` for one that is not among them."""
    known = {name.lower(): name for name in names}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            told = ", ".join(each for each in names if each not in PATHS)
            hint = f"; did you mean {known[near[0]]}?" if near else f": there are {told}"
            raise SourceFailed(f"there is no option {name}{hint}")
        values[known[name.lower()]] = value
    return values


def parse_choice(values: Mapping[str, str], name: str, *choices: str) -> str:
    """One of some words, as it is among them; the first one is the default."""
    value = values.get(name, choices[0])
    for choice in choices:
        if value.lower() == choice.lower():
            return choice
    raise SourceFailed(f"{name} is {' or '.join(choices)}, not {value!r}")


def parse_boolean(values: Mapping[str, str], name: str, default: bool) -> bool:
    """True or false."""
    value = values.get(name, str(default)).lower()
    if value not in _TRUTHS:
        raise SourceFailed(f"{name} is true or false, not {value!r}")
    return _TRUTHS[value]


def parse_positive(values: Mapping[str, str], name: str, default: int) -> int:
    """A number, at least 1."""
    value = values.get(name, str(default))
    if not _NUMBER.fullmatch(value) or not int(value):
        raise SourceFailed(f"{name} is a number from 1 on, not {value!r}")
    return int(value)


def parse_size_option(values: Mapping[str, str], name: str, default: int) -> int:
    """A number of bytes, or a size such as ``16MiB``; in bytes."""
    value = values.get(name)
    if value is None:
        return default
    try:
        return parse_size(int(value) if _BYTES.fullmatch(value) else value)
    except ValueError as error:
        raise SourceFailed(f"{name}: {error}") from None
