"""Numbers for new files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

LARGEST_NUMBER: Final = 10**15 - 1
"""Largest number of a file. A file with a longer number is not one of the server's."""


class FileNumbers:
    """Numbers for new files, each greater than all before. Safe to use from any thread.

    A number is the time in milliseconds, as in Kestrel, or the last number plus 1.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._last = 0
        self._lock = Lock()

    def mark_used(self, numbers: Iterable[int]) -> None:
        """Make later numbers greater than those of existing files. Call it before `next`."""
        self._last = max(numbers, default=0)

    def next(self) -> int:
        """Return the number for a new file. Raises OSError if a file has `LARGEST_NUMBER`."""
        with self._lock:
            number = max(self._now_ms(), self._last + 1)
            if number > LARGEST_NUMBER:
                raise OSError(errno.EOVERFLOW, "a file already has the largest possible number")
            self._last = number
        return number
