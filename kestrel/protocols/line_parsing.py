"""Helpers for line protocols: words, numbers, one-line reasons, and the detection of other protocols."""

from __future__ import annotations

import re
from typing import Final

from kestrel.commands import MAX_DELAY_MS

_HTTP: Final = re.compile(
    rb"(?:^|.*\s)HTTP/\d"  # a request line, whatever its method
    rb"|(?:CONNECT|HEAD|OPTIONS|PATCH|POST|PRI|TRACE)(?:\s|$)"
    rb"|Host:|[!#-'*+.^_`|~0-9A-Za-z-]+:[ \t]*\S",  # a header
    re.IGNORECASE | re.DOTALL,
)
_TLS: Final = re.compile(rb"\x16\x03[\x00-\x04]")
"""The first bytes of a TLS handshake record (RFC 8446, section 5.1)."""


class BadNumber(Exception):
    """A word that is not a number in the range that is required."""


def split_words(line: bytes) -> list[bytes]:
    """Return the words of a line, separated by single spaces, without empty ones at its end."""
    words = line.split(b" ")
    while words and not words[-1]:
        words.pop()
    return words


def detect_other_protocol(line: bytes) -> str | None:
    """Return the protocol that a request line belongs to if it is HTTP or TLS; else None.

    A web page can make a browser send such lines to any port, with commands behind them. No request of the memcache or
    text protocol matches: a queue name cannot contain a slash, and the first word of a request contains no colon.
    """
    if _HTTP.match(line):
        return "HTTP"
    return "TLS" if _TLS.match(line) else None


def parse_int32(word: bytes) -> int:
    """Parse a signed 32-bit decimal, or raise `BadNumber`."""
    digits = word[1:] if word[:1] in (b"-", b"+") else word
    # isdigit() rejects spaces and underscores, which int() accepts. The length check rejects endless digits.
    if not digits.isdigit() or len(digits) > 32:
        raise BadNumber
    value = int(word)
    if not -(1 << 31) <= value < 1 << 31:
        raise BadNumber
    return value


def parse_delay_ms(word: bytes) -> int:
    """Parse a delay in milliseconds, 0 to `MAX_DELAY_MS`, or raise `BadNumber`."""
    if not word.isdigit() or len(word) > 32 or int(word) > MAX_DELAY_MS:
        raise BadNumber
    return int(word)


def encode_one_line(reason: str) -> bytes:
    """Encode a text in Latin-1, on one line: line ends become spaces, and other characters question marks."""
    return " ".join(reason.split()).encode("latin-1", "replace")
