"""The notation for a place in a file: ``logging.file``, ``queues["work"].maxItems``, ``queues[2].maxItems``."""

from __future__ import annotations

import re
from typing import Final

from kestrel.config.value_text import show_value

_BARE: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")


def setting_path(path: str, name: str) -> str:
    """Return the path of a setting in the table at `path`, which is empty for the whole file."""
    name = name if _BARE.fullmatch(name) else show_value(name)
    return f"{path}.{name}" if path else name


def entry_path(path: str, name_or_index: str | int) -> str:
    """Return the path of one table of a list: by its name, or by its index from 0 if it has none."""
    return f"{path}[{show_value(name_or_index)}]"
