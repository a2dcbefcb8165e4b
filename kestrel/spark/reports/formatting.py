"""Names and figures as a report's reader sees them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from kestrel.tools.formatting import show_duration, show_text

LONGEST_LABEL: Final = 32
"""Characters of a name in a picture."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HIDDEN: Final = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff0-\uffff]")
"""What is not seen, turns the text round it about, or may not stand in XML."""


def format_name(text: str) -> str:
    """A name of anything: without characters that are not seen."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", show_text(text))


def format_label(text: str) -> str:
    """The same for a picture: a long name without its middle."""
    whole = format_name(text)
    half = LONGEST_LABEL // 2
    return whole if len(whole) <= LONGEST_LABEL else f"{whole[: half - 1]}\u2026{whole[-half:]}"


def format_number(value: int) -> str:
    """A number, its thousands apart."""
    return f"{value:,}"


def format_count(value: int, noun: str) -> str:
    """The number with its noun."""
    return f"{format_number(value)} {noun}" + ("" if value == 1 else "s")


def format_percent(share: float) -> str:
    """A part of a whole. A little is never shown as nothing, nor almost all as all."""
    shown = f"{100 * share:.2g}" if 0 < share < 0.1 else f"{100 * share:.1f}".removesuffix(".0")
    if shown == "100" and share < 1:
        shown = "over 99.9"
    return f"{shown}%"


def format_moment(time_ms: int) -> datetime:
    """A time in UTC."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def format_time(time_ms: int | None) -> str:
    """A time in UTC, to the second."""
    return "unknown" if time_ms is None else f"{format_moment(time_ms):%Y-%m-%d %H:%M:%S} UTC"


def format_duration_range(least_ms: int, most_ms: int) -> str:
    """A duration that is somewhere between the two."""
    least, most = show_duration(least_ms), show_duration(most_ms)
    return least if least == most else f"{least} to {most}"
