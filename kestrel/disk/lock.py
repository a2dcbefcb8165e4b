"""One owner per folder."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from kestrel.errors import FolderInUse


class FolderLock:
    """A lock file that the kernel releases when its owner ends, however it ends.

    `release` gives it back. The file stays: erasing it would let two owners lock two files of one name.
    """

    def __init__(self, path: bytes) -> None:
        """Take the lock, or raise `FolderInUse` with the owner's process number."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            folder = os.fsdecode(os.path.dirname(os.path.dirname(path)))
            raise FolderInUse(f"another server (process {owner}) owns the queue folder {folder}") from None
        with suppress(OSError):  # on a full disk the number is missing; the lock holds
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another server have the folder."""
        os.close(self._descriptor)
