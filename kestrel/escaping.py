r"""Display of names and text: characters that could forge a log line or control a terminal are escaped.

A name is shown as UTF-8 where it is valid UTF-8. Other bytes, and those of characters that cannot be seen (control and
format characters, spaces other than U+0020), are shown as `\xNN`, and a backslash as `\\`. Two names never look the
same. `unescape_name` is the inverse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_UNSAFE_RANGES: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
"""Control characters (C0, DEL, C1), the line and paragraph separators, and surrogates, which UTF-8 cannot encode."""
_UNSAFE: Final = re.compile(f"[{_UNSAFE_RANGES}]")
_NOT_ASCII: Final = re.compile("[^\x00-\x7f]+")
_ESCAPES: Final = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")


def escape_controls(text: str) -> str:
    r"""Return the text on one line, with each control character and separator as `\xNN` or `\uNNNN`."""
    return _UNSAFE.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def show_name(name: bytes) -> str:
    r"""Return a queue's name as printable text: other characters and bytes as `\xNN`, and a backslash as `\\`."""
    text = name.replace(b"\\", rb"\\").decode("utf-8", "backslashreplace")
    return text if text.isprintable() else "".join(each if each.isprintable() else escape_bytes(each) for each in text)


def show_names(names: Iterable[bytes]) -> str:
    """Return the names as `show_name` shows them, separated by commas."""
    return ",".join(map(show_name, names))


def escape_bytes(text: str) -> str:
    r"""Return each byte of `text` in UTF-8 as `\xNN`. `text` must not be empty."""
    return "\\x" + text.encode().hex("-").replace("-", "\\x")


def unescape_name(shown: bytes) -> bytes:
    r"""Return the name that is shown as `shown`, in UTF-8 or with `\xNN` for any byte. Other backslashes stay."""
    return _ESCAPES.sub(lambda match: bytes.fromhex(match[1].decode()) if match[1] else b"\\", shown)


def escape_non_ascii(text: str) -> str:
    r"""Return text that contains shown names with each byte above 127 as `\xNN`, which `unescape_name` accepts."""
    return text if text.isascii() else _NOT_ASCII.sub(lambda match: escape_bytes(match[0]), text)


def count(number: int, noun: str) -> str:
    """Return the number with its noun: "1 item", "2 items"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
