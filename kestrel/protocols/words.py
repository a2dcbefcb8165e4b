"""What protocols of text lines have in common: words, numbers, and reasons that fit on a line."""

from __future__ import annotations


class BadNumber(Exception):
    """A word that is no signed 32-bit decimal."""


def words_of(line: bytes) -> list[bytes]:
    """The words of a line, separated by single spaces; empty ones at its end do not count."""
    words = line.split(b" ")
    while words and not words[-1]:
        words.pop()
    return words


def number(word: bytes) -> int:
    """A signed 32-bit decimal, or `BadNumber`."""
    digits = word[1:] if word[:1] in (b"-", b"+") else word
    # isdigit() keeps out what int() would forgive (spaces, underscores); the length, endless digits.
    if not digits.isdigit() or len(digits) > 32:
        raise BadNumber
    value = int(word)
    if not -(1 << 31) <= value < 1 << 31:
        raise BadNumber
    return value


def one_line(reason: str) -> bytes:
    """A text without line ends, in Latin-1; characters that it lacks become question marks."""
    return " ".join(reason.split()).encode("latin-1", "replace")
