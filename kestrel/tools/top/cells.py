"""Text for the columns of a terminal: without control characters, and with a known width."""

from __future__ import annotations

import unicodedata
from typing import Final

from kestrel.escaping import escape_bytes, show_name
from kestrel.tools.formatting import show_text

CUT: Final = "~"
"""The mark at the end of truncated text."""


def clean(text: str) -> str:
    """Return text with all characters escaped that do not take one or two columns."""
    shown = show_text(text)
    if shown.isascii():
        return shown
    return "".join(each if _is_plain(each) else f"\\u{ord(each):04x}" for each in shown)


def clean_name(name: bytes) -> str:
    """Return the shown name of a queue, with all characters escaped that do not take one or two columns."""
    shown = show_name(name)
    return shown if shown.isascii() else "".join(each if _is_plain(each) else escape_bytes(each) for each in shown)


def _is_plain(character: str) -> bool:
    """Return whether a character is printable and not a combining mark."""
    return character.isascii() or (character.isprintable() and not unicodedata.category(character).startswith("M"))


def width(text: str) -> int:
    """Return the number of columns of a clean text."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(each) in ("W", "F") else 1 for each in text)


def truncate(text: str, columns: int) -> str:
    """Return a clean text, truncated to `columns` columns."""
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
    """Return a clean text, left-aligned in exactly `columns` columns."""
    text = truncate(text, columns)
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """Return a clean text, right-aligned in exactly `columns` columns."""
    text = truncate(text, columns)
    return " " * (columns - width(text)) + text
