"""The numbers of new journal files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from kestrel.journal.fileset import LARGEST_NUMBER, QueueFiles


class FileNumbers:
    """Numbers for new files, each greater than any before: the time in ms, as Kestrel's are."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._last = 0

    def know(self, queues: Iterable[QueueFiles]) -> None:
        """These files are there already."""
        numbers = [file.number for files in queues for file in (*files.rotated, *files.packs)]
        self._last = max(numbers, default=0)

    def next(self) -> int:
        """The number for a new file. Raises OSError when all are used up, which takes a file of an absurd number."""
        number = max(self._now_ms(), self._last + 1)
        if number > LARGEST_NUMBER:
            raise OSError(errno.EOVERFLOW, "there is a file with the largest number that there is")
        self._last = number
        return number
