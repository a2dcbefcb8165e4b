"""Sizes and durations as people write them, read strictly: what is not understood is an error, never a guess.

A text is a number, perhaps one space or one dot, and a unit, so that Kestrel's own ``16.megabytes`` and
``100.milliseconds`` can stay as they are. A number without quotes has a fixed unit: bytes, or seconds.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

from kestrel.config.shown import shown

LARGEST: Final = 2**62
"""More bytes or milliseconds than this are a slip. Sums of two still fit a signed 64-bit field."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

# One base for all. Kestrel's `.megabytes` counts in 1024s; `MB` is its abbreviation, and a file in which
# 16.megabytes and 16MB differ would be a trap.
_BYTES_BY_UNIT: Final = {
    unit: size
    for size, units in [
        (1, ("b", "byte", "bytes")),
        (KIB, ("kib", "kb", "kilobyte", "kilobytes")),
        (MIB, ("mib", "mb", "megabyte", "megabytes")),
        (GIB, ("gib", "gb", "gigabyte", "gigabytes")),
        (TIB, ("tib", "tb", "terabyte", "terabytes")),
    ]
    for unit in units
}

_MS_BY_UNIT: Final = {
    unit: milliseconds
    for milliseconds, units in [
        (1, ("ms", "millisecond", "milliseconds")),
        (1_000, ("s", "second", "seconds")),
        (60_000, ("m", "minute", "minutes")),
        (3_600_000, ("h", "hour", "hours")),
        (86_400_000, ("d", "day", "days")),
    ]
    for unit in units
}

_PART: Final = r"([0-9]+(?:\.[0-9]+)?)[ .]?([A-Za-z]+)"
_ONE_PART: Final = re.compile(_PART)
_PARTS: Final = re.compile(f"{_PART}(?: ?{_PART})*")

_LONGEST: Final = 64  # characters; a longer text is no number that anybody meant

_A_SIZE: Final = 'write for example "16MiB", "16.megabytes" or a number of bytes like 16777216'
_A_DURATION: Final = 'write for example "100ms", "1m30s", "2.hours" or a number of seconds like 1.5'


def parse_size(value: object) -> int:
    """The size in bytes: ``"16MiB"``, ``"16.megabytes"``, ``"1.5 GB"``, or a whole number of bytes.

    Every unit counts in 1024s, ``KB`` like ``KiB``; capitals do not matter. Raises `ValueError` with a
    sentence that shows a right example: for a negative size, a fraction of a byte, a text without a unit.
    """
    match value:
        case bool():
            raise ValueError(f"{shown(value)} is not a size; {_A_SIZE}")
        case int():
            size = Fraction(value)
        case str() if (part := _matched(_ONE_PART, value)) and part[2].lower() in _BYTES_BY_UNIT:
            size = Fraction(part[1]) * _BYTES_BY_UNIT[part[2].lower()]
        case _:
            raise ValueError(f"{shown(value)} is not a size; {_A_SIZE}")
    return _whole(size, value, "bytes", _A_SIZE)


def parse_duration_ms(value: object) -> int:
    """The duration in milliseconds: ``"100ms"``, ``"1m30s"``, ``"2.hours"``, or a number of seconds.

    Units go from the largest to the smallest, each once, in small letters (a capital ``M`` could be a month).
    Raises `ValueError` with a sentence that shows a right example: for a negative duration, a fraction of a
    millisecond, a text without a unit.
    """
    match value:
        case bool():
            raise ValueError(f"{shown(value)} is not a duration; {_A_DURATION}")
        case int():
            duration_ms = Fraction(value) * 1_000
        case float() if math.isfinite(value):
            # By way of its text: 0.1 is the tenth that was written, not the double next to it.
            duration_ms = Fraction(str(value)) * 1_000
        case str() if _matched(_PARTS, value):
            duration_ms = _sum_ms(value)
        case _:
            raise ValueError(f"{shown(value)} is not a duration; {_A_DURATION}")
    return _whole(duration_ms, value, "milliseconds", _A_DURATION)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return pattern.fullmatch(text) if len(text) <= _LONGEST else None


def _sum_ms(text: str) -> Fraction:
    total = Fraction(0)
    previous_unit_ms = math.inf
    for number, unit in _ONE_PART.findall(text):
        unit_ms = _MS_BY_UNIT.get(unit)
        if unit_ms is None or unit_ms >= previous_unit_ms:
            raise ValueError(f"{shown(text)} is not a duration; {_A_DURATION}")
        total += Fraction(number) * unit_ms
        previous_unit_ms = unit_ms
    return total


def _whole(amount: Fraction, value: object, unit: str, example: str) -> int:
    if amount < 0:
        raise ValueError(f"{shown(value)} is negative; {example}")
    if amount > LARGEST:
        raise ValueError(f"{shown(value)} is more than 2**62 {unit}; {example}")
    if amount.denominator != 1:
        raise ValueError(f"{shown(value)} is not a whole number of {unit}; {example}")
    return amount.numerator
