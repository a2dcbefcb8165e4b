"""Folders of the server inside a queue folder. Kestrel and libkestrel ignore them, because they read files only."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import Final

from kestrel.errors import FolderInUse

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


class FolderLock:
    """A lock file that the kernel releases when its owner ends, in whatever way.

    The file is never erased: two owners could then each lock a different file of that name.
    """

    def __init__(self, path: bytes) -> None:
        """Take the lock, or raise `FolderInUse` with the process id of the owner."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            folder = os.fsdecode(os.path.dirname(os.path.dirname(path)))
            raise FolderInUse(f"another server (process {owner}) owns the queue folder {folder}") from None
        with suppress(OSError):  # on a full disk the process id is missing, but the lock is held
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


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
