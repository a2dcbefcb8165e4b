"""Text that is safe to show: the characters that could forge a line of a log or control a terminal are escaped."""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters (C0, DEL, C1), the line and paragraph separators, and surrogates, which no encoding has."""


def escape_controls(text: str) -> str:
    r"""Return the text on one line, with each control character and separator as `\xNN` or `\uNNNN`."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
