"""The server's own folders inside a queue folder, and numbers for new files.

Kestrel and libkestrel ignore these folders, because they read files only.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

PRIVATE_FOLDER: Final = b".kestrel"
"""Everything in the queue folder that is neither a journal nor a scroll: lock, reserve, quarantined files."""

ERASE_FOLDER: Final = PRIVATE_FOLDER + b"/erase"
"""Files that a thread erases, so that erasing a large file does not delay the reactor."""

DAMAGED_FOLDER: Final = PRIVATE_FOLDER + b"/damaged"
"""Quarantined copies of bytes that were cut off, and files that cannot be trusted."""

SEGMENTS_FOLDER: Final = PRIVATE_FOLDER + b"/segments"
"""The segment log of each queue, named like its current file (`kestrel/journal/segments.py`)."""

FAILED_SYNCS_FOLDER: Final = PRIVATE_FOLDER + b"/failed-syncs"
"""Notes of failed syncs (`kestrel/storage/folder_resources.py`)."""


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
