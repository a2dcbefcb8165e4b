"""File systems that take names for one which differ in case, or in how an accent is written: of macOS, Windows, memory
cards. Two queues of such names would write into the same files.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from kestrel.errors import BadQueueName


def fold_name(name: bytes) -> str:
    """What names have in common that such a file system may take for one. It may be more than any single one does."""
    text = name.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())


def check_distinct_when_folded(name: bytes, others: Iterable[bytes]) -> None:
    """Raise `BadQueueName` if such a file system may take a new name for one of those that are there."""
    ours = fold_name(name)
    for other in others:
        if other != name and fold_name(other) == ours:
            shown = other.decode("utf-8", "backslashreplace")
            raise BadQueueName(f"the file system of the queues does not tell this name from {shown}, which is there")
