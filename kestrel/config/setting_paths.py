"""How a place in a file is written: ``logging.file``, ``queues["work"].maxItems``, ``queues[2].maxItems``."""

from __future__ import annotations

import re
from typing import Final

from kestrel.config.value_text import show_value

_BARE: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")


def setting_path(path: str, name: str) -> str:
    """The setting of that name in the table at that path, which is empty for the file as a whole."""
    name = name if _BARE.fullmatch(name) else show_value(name)
    return f"{path}.{name}" if path else name


def entry_path(path: str, name_or_index: str | int) -> str:
    """One of a list of tables: by its name, or where it has none by its place, the first being 0."""
    return f"{path}[{show_value(name_or_index)}]"
