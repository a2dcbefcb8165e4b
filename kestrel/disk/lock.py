"""The lock that gives a queue folder one owner."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from kestrel.errors import FolderInUse


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
        """Release the lock, and keep the file."""
        os.close(self._descriptor)
