"""Text in the columns of a terminal: nothing that a terminal would obey, and as wide as it looks."""

from __future__ import annotations

import unicodedata
from typing import Final

from kestrel.escaping import escape_bytes, show_name
from kestrel.tools.formatting import show_text

CUT: Final = "~"
"""Ends what was cut off."""


def clean(text: str) -> str:
    """Text of which every character takes one column or two: what would not is escaped."""
    shown = show_text(text)
    if shown.isascii():
        return shown
    return "".join(each if _is_plain(each) else f"\\u{ord(each):04x}" for each in shown)


def clean_name(name: bytes) -> str:
    """Return a queue's name as it is shown everywhere, with its marks escaped."""
    shown = show_name(name)
    return shown if shown.isascii() else "".join(each if _is_plain(each) else escape_bytes(each) for each in shown)


def _is_plain(character: str) -> bool:
    """Whether it is no format character (as those that turn the direction of writing), mark, or odd space."""
    return character.isascii() or (character.isprintable() and not unicodedata.category(character).startswith("M"))


def width(text: str) -> int:
    """How many columns a clean text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(each) in ("W", "F") else 1 for each in text)


def truncate(text: str, columns: int) -> str:
    """No more of a clean text than that."""
    if width(text) <= columns:
        return text
    kept, taken = "", len(CUT)
    for each in text:
        taken += width(each)
        if taken > columns:
            break
        kept += each
    return (kept + CUT)[: max(0, columns)]


def left(text: str, columns: int) -> str:
    """At the left of exactly so many columns."""
    text = truncate(text, columns)
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """At the right of exactly so many columns."""
    text = truncate(text, columns)
    return " " * (columns - width(text)) + text
