"""Formatting of names and figures for the reader of a report."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from kestrel.tools.formatting import show_duration, show_text

LONGEST_LABEL: Final = 32
"""Maximum length of a name in a chart, in characters."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HIDDEN: Final = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff0-\uffff]")
"""Characters that are invisible, change the text direction, or are not allowed in XML."""


def format_name(text: str) -> str:
    """Return a name with invisible characters escaped."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", show_text(text))


def format_label(text: str) -> str:
    """Return a name for a chart; the middle of a long name is left out."""
    whole = format_name(text)
    half = LONGEST_LABEL // 2
    return whole if len(whole) <= LONGEST_LABEL else f"{whole[: half - 1]}\u2026{whole[-half:]}"


def format_number(value: int) -> str:
    """Return a number with thousands separators."""
    return f"{value:,}"


def format_count(value: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{format_number(value)} {noun}" + ("" if value == 1 else "s")


def format_percent(share: float) -> str:
    """Return a share as a percentage; only an exact 0 or 1 is shown as 0% or 100%."""
    shown = f"{100 * share:.2g}" if 0 < share < 0.1 else f"{100 * share:.1f}".removesuffix(".0")
    if shown == "100" and share < 1:
        shown = "over 99.9"
    return f"{shown}%"


def format_moment(time_ms: int) -> datetime:
    """Return a time in UTC."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def format_time(time_ms: int | None) -> str:
    """Return the text of a time in UTC, in seconds."""
    return "unknown" if time_ms is None else f"{format_moment(time_ms):%Y-%m-%d %H:%M:%S} UTC"


def format_duration_range(least_ms: int, most_ms: int) -> str:
    """Return the text of a range of durations, or one duration if both look the same."""
    least, most = show_duration(least_ms), show_duration(most_ms)
    return least if least == most else f"{least} to {most}"
