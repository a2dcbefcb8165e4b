"""How many journal files are open at once."""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Final, Protocol

MAX_OPEN_FILES: Final = 512
"""Of queues beyond that, those longest unused are closed; they open again on use. Where the process may open few files,
a quarter of those."""


class Closable(Protocol):
    """A file that is opened again when it is used."""

    def close(self) -> None:
        """Give the descriptor back."""


class OpenFiles:
    """The writers in use, of which only the latest keep their files open."""

    def __init__(self) -> None:
        self._writers: OrderedDict[Closable, None] = OrderedDict()
        self._file_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    def touch(self, writer: Closable) -> None:
        """This writer was used just now; the one longest unused is closed when too many are open."""
        self._writers[writer] = None
        self._writers.move_to_end(writer)
        if len(self._writers) > min(MAX_OPEN_FILES, self._file_limit):
            self._writers.popitem(last=False)[0].close()

    def close(self, writer: Closable) -> None:
        """This writer is not used any more."""
        self._writers.pop(writer, None)
        writer.close()
