"""The display of a file's values and places in messages.

A place is ``logging.file``, ``queues["work"].maxItems``, or ``queues[2].maxItems``.
"""

from __future__ import annotations

import json
import re
from typing import Final

MAX_SHOWN_CHARACTERS: Final = 60
"""Limit of shown characters of a text."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")


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


def setting_path(path: str, name: str) -> str:
    """Return the path of a setting in the table at `path`, which is empty for the whole file."""
    name = name if _BARE.fullmatch(name) else show_value(name)
    return f"{path}.{name}" if path else name


def entry_path(path: str, name_or_index: str | int) -> str:
    """Return the path of one table of a list: by its name, or by its index from 0 if it has none."""
    return f"{path}[{show_value(name_or_index)}]"
