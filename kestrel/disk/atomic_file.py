"""A small file that is always whole: it is replaced at once, and safe when that is done."""

from __future__ import annotations

import os

from kestrel.disk.files import Disk


class AtomicFile:
    """One file. Blocks, so that changes belong in a thread; one at a time.

    A change is first written beside it: to ``.new`` behind its name, or to `temporary`, a name that is free.
    """

    def __init__(self, disk: Disk, path: bytes, temporary: bytes | None = None) -> None:
        self._disk = disk
        self._path = path
        self._temporary = path + b".new" if temporary is None else temporary

    def read(self, most_bytes: int) -> bytes:
        """What it holds, of which no more than that is read. Raises OSError."""
        descriptor = self._disk.open_read(self._path)
        try:
            return self._disk.read(descriptor, 0, most_bytes)
        finally:
            self._disk.close(descriptor)

    def write(self, data: bytes) -> None:
        """Put that in place of what it holds, and return when it is on the medium.

        Raises OSError: it is as it was, or it is changed and a power failure may undo that.
        """
        folder = os.path.dirname(self._path) or b"."
        temporary = self._temporary
        self._disk.make_folder(folder)
        self._disk.erase(temporary)
        descriptor = self._disk.open_append(temporary)
        try:
            self._disk.write(descriptor, data)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
        self._disk.rename(temporary, self._path)
        self._disk.sync_folder(folder)
