"""The display of a file's values in error messages."""

from __future__ import annotations

import json
from typing import Final

MAX_SHOWN_CHARACTERS: Final = 60
"""Limit of shown characters of a text."""


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
