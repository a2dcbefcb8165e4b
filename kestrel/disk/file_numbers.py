"""The numbers of new files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

LARGEST_NUMBER: Final = 10**15 - 1
"""A file with a longer number is foreign: those behind it could not be told from foreign ones any more."""


class FileNumbers:
    """Numbers for new files, each greater than any before: the time in ms, as Kestrel's are. For any thread."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._last = 0
        self._lock = Lock()

    def mark_used(self, numbers: Iterable[int]) -> None:
        """Files of these numbers are there already."""
        self._last = max(numbers, default=0)

    def next(self) -> int:
        """The number for a new file. Raises OSError when all are used up, which takes a file of an absurd number."""
        with self._lock:
            number = max(self._now_ms(), self._last + 1)
            if number > LARGEST_NUMBER:
                raise OSError(errno.EOVERFLOW, "there is a file with the largest number that there is")
            self._last = number
        return number
