"""A value of a configuration file as a complaint shows it."""

from __future__ import annotations

import json
from typing import Final

MAX_SHOWN_CHARACTERS: Final = 60
"""Characters of a text that are shown; the file's owner can look up the rest."""


def show_value(value: object) -> str:
    """Short, and as it stands in the file where that is possible."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            is_long = len(value) > MAX_SHOWN_CHARACTERS
            return json.dumps(value[:MAX_SHOWN_CHARACTERS], ensure_ascii=False) + ("..." if is_long else "")
        case int() if value.bit_length() > 128:
            # Python refuses to write out some thousand digits, which TOML may hold in hexadecimal.
            return f"a number of {value.bit_length()} bits"
        case int() | float():
            return str(value)
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"
