"""The values of a configuration file in messages, and strict parsers for sizes and durations, with their formatters.

A place in a message is ``logging.file``, ``queues["work"].maxItems``, or ``queues[2].maxItems``.

A size or duration in quotes is a number, an optional space or dot, and a unit, so that Kestrel's ``16.megabytes`` and
``100.milliseconds`` are valid. A number without quotes has a fixed unit: bytes, or seconds. An unknown text is an
error, never a guess.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from typing import Final

MAX_SHOWN_CHARACTERS: Final = 60
"""Limit of shown characters of a text."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")


def show_value(value: object) -> str:
    """Return a short text for a value, as in the file where possible."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            is_long = len(value) > MAX_SHOWN_CHARACTERS
            return json.dumps(value[:MAX_SHOWN_CHARACTERS], ensure_ascii=False) + ("..." if is_long else "")
        case int() if value.bit_length() > 128:
            # Python refuses to format some thousand digits, which TOML may have in hexadecimal.
            return f"a number of {value.bit_length()} bits"
        case int() | float():
            return str(value)
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def setting_path(path: str, name: str) -> str:
    """Return the path of a setting in the table at `path`, which is empty for the whole file."""
    name = name if _BARE.fullmatch(name) else show_value(name)
    return f"{path}.{name}" if path else name


def entry_path(path: str, name_or_index: str | int) -> str:
    """Return the path of one table of a list: by its name, or by its index from 0 if it has none."""
    return f"{path}[{show_value(name_or_index)}]"


# Sizes and durations.

MAX_AMOUNT: Final = 2**62
"""Limit of an amount, in bytes or milliseconds. The sum of two still fits a signed 64-bit field."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

# From the largest to the smallest, each with its names. The first name is written, all are read. All units have base
# 1024. Kestrel's `.megabytes` has it, and MB is its abbreviation. It would be a trap if 16.megabytes and 16MB differed.
_SIZE_UNITS: Final = (
    (TIB, ("TiB", "TB", "terabyte", "terabytes")),
    (GIB, ("GiB", "GB", "gigabyte", "gigabytes")),
    (MIB, ("MiB", "MB", "megabyte", "megabytes")),
    (KIB, ("KiB", "KB", "kilobyte", "kilobytes")),
    (1, ("B", "byte", "bytes")),
)
_DURATION_UNITS: Final = (
    (86_400_000, ("d", "day", "days")),
    (3_600_000, ("h", "hour", "hours")),
    (60_000, ("m", "minute", "minutes")),
    (1_000, ("s", "second", "seconds")),
    (1, ("ms", "millisecond", "milliseconds")),
)

_BYTES_BY_UNIT: Final = {name.lower(): size for size, names in _SIZE_UNITS for name in names}
_MS_BY_UNIT: Final = {name: unit_ms for unit_ms, names in _DURATION_UNITS for name in names}

_NOTHING: Final = "0"  # the only number that means the same in every unit

_PART: Final = r"([0-9]+(?:\.[0-9]+)?)[ .]?([A-Za-z]+)"
_ONE_PART: Final = re.compile(_PART)
_PARTS: Final = re.compile(f"{_PART}(?: ?{_PART})*")

_LONGEST: Final = 64  # characters; a longer text is certainly a mistake

_A_SIZE: Final = 'write for example "16MiB", "16.megabytes" or a number of bytes like 16777216'
_A_DURATION: Final = 'write for example "100ms", "1m30s", "2.hours" or a number of seconds like 1.5'


def parse_size(value: object) -> int:
    """Return a size in bytes: ``"16MiB"``, ``"16.megabytes"``, ``"1.5 GB"``, or a whole number of bytes.

    Every unit has base 1024, ``KB`` like ``KiB``. Case does not matter. Raises `ValueError` with an example for
    anything else, such as a negative size, a fraction of a byte, or a text without a unit other than ``"0"``.
    """
    match value:
        case bool():
            raise ValueError(f"{show_value(value)} is not a size; {_A_SIZE}")
        case int():
            size = Fraction(value)
        case str() if value == _NOTHING:
            size = Fraction(0)
        case str() if (part := _matched(_ONE_PART, value)) and part[2].lower() in _BYTES_BY_UNIT:
            size = Fraction(part[1]) * _BYTES_BY_UNIT[part[2].lower()]
        case _:
            raise ValueError(f"{show_value(value)} is not a size; {_A_SIZE}")
    return _whole(size, value, "bytes", _A_SIZE)


def format_size(size_bytes: int) -> str:
    """Return a size of 0 or more as `parse_size` reads it, in its largest exact unit: ``"16MiB"``, ``"0"``."""
    if size_bytes == 0:
        return _NOTHING
    unit_bytes, names = next(unit for unit in _SIZE_UNITS if size_bytes % unit[0] == 0)
    return f"{size_bytes // unit_bytes}{names[0]}"


def parse_duration_ms(value: object) -> int:
    """Return a duration in milliseconds: ``"100ms"``, ``"1m30s"``, ``"2.hours"``, or a number of seconds.

    Units come from the largest to the smallest, each once, in small letters (a capital ``M`` could be a month). Raises
    `ValueError` with an example for anything else, such as a negative duration, a fraction of a millisecond, or a text
    without a unit other than ``"0"``.
    """
    match value:
        case bool():
            raise ValueError(f"{show_value(value)} is not a duration; {_A_DURATION}")
        case int():
            duration_ms = Fraction(value) * 1_000
        case float() if math.isfinite(value):
            # Converted by its text: 0.1 is exactly a tenth, not the nearest double.
            duration_ms = Fraction(str(value)) * 1_000
        case str() if value == _NOTHING:
            duration_ms = Fraction(0)
        case str() if _matched(_PARTS, value):
            duration_ms = _sum_ms(value)
        case _:
            raise ValueError(f"{show_value(value)} is not a duration; {_A_DURATION}")
    return _whole(duration_ms, value, "milliseconds", _A_DURATION)


def format_duration_ms(duration_ms: int) -> str:
    """Return a duration of 0 ms or more as `parse_duration_ms` reads it, without zero units: ``"1m30s"``, ``"0"``."""
    parts = []
    rest_ms = duration_ms
    for unit_ms, names in _DURATION_UNITS:
        count, rest_ms = divmod(rest_ms, unit_ms)
        if count:
            parts.append(f"{count}{names[0]}")
    return "".join(parts) or _NOTHING


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return pattern.fullmatch(text) if len(text) <= _LONGEST else None


def _sum_ms(text: str) -> Fraction:
    total = Fraction(0)
    previous_unit_ms = math.inf
    for number, unit in _ONE_PART.findall(text):
        unit_ms = _MS_BY_UNIT.get(unit)
        if unit_ms is None or unit_ms >= previous_unit_ms:
            raise ValueError(f"{show_value(text)} is not a duration; {_A_DURATION}")
        total += Fraction(number) * unit_ms
        previous_unit_ms = unit_ms
    return total


def _whole(amount: Fraction, value: object, unit: str, example: str) -> int:
    if amount < 0:
        raise ValueError(f"{show_value(value)} is negative; {example}")
    if amount > MAX_AMOUNT:
        raise ValueError(f"{show_value(value)} is more than 2**62 {unit}; {example}")
    if amount.denominator != 1:
        raise ValueError(f"{show_value(value)} is not a whole number of {unit}; {example}")
    return amount.numerator
