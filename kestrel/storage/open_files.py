"""A limit for the number of open journal files."""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Final, Protocol

MAX_OPEN_FILES: Final = 512
"""Maximum number of open files, or a quarter of the process's limit of descriptors if that is smaller."""


class Closable(Protocol):
    """A file that opens again when it is used."""

    def close(self) -> None:
        """Close the descriptor."""


class OpenFiles:
    """The files in use. Above the limit, the least recently used one is closed."""

    def __init__(self) -> None:
        self._writers: OrderedDict[Closable, None] = OrderedDict()
        self._file_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    def touch(self, writer: Closable) -> None:
        """Mark a file as just used. If too many are open, close the least recently used one."""
        self._writers[writer] = None
        self._writers.move_to_end(writer)
        if len(self._writers) > min(MAX_OPEN_FILES, self._file_limit):
            self._writers.popitem(last=False)[0].close()

    def close(self, writer: Closable) -> None:
        """Close the file and stop tracking it."""
        self._writers.pop(writer, None)
        writer.close()
