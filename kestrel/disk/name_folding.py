"""Names that some file systems take for the same, because they differ only in case or in the encoding of accents.

The file systems of macOS, Windows and memory cards do so. Two queues with such names would write to the same files.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from kestrel.errors import BadQueueName


def fold_name(name: bytes) -> str:
    """Return a key that is equal for all names that such a file system may take for the same.

    Names with the same key may still be different names for a particular file system.
    """
    text = name.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())


def check_distinct_when_folded(name: bytes, others: Iterable[bytes]) -> None:
    """Raise `BadQueueName` if a file system may take the new name for one of the others."""
    ours = fold_name(name)
    for other in others:
        if other != name and fold_name(other) == ours:
            shown = other.decode("utf-8", "backslashreplace")
            raise BadQueueName(f"the file system of the queues does not tell this name from {shown}, which is there")
