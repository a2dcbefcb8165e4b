"""A small file that is replaced as a whole, so that a crash leaves the old or the new contents."""

from __future__ import annotations

import os

from kestrel.disk.files import Disk


class AtomicFile:
    """A small file that is replaced as a whole.

    Methods block, so call `write` in a thread, and only one at a time. New contents are first written to `temporary`,
    an unused path. By default that is the path with ``.new`` appended.
    """

    def __init__(self, disk: Disk, path: bytes, temporary: bytes | None = None) -> None:
        self._disk = disk
        self._path = path
        self._temporary = path + b".new" if temporary is None else temporary

    def read(self, most_bytes: int) -> bytes:
        """Return the contents, up to `most_bytes`. Raises OSError."""
        descriptor = self._disk.open_read(self._path)
        try:
            return self._disk.read(descriptor, 0, most_bytes)
        finally:
            self._disk.close(descriptor)

    def write(self, data: bytes) -> None:
        """Replace the contents by `data`, and return when they are on the medium.

        After an OSError the file is either unchanged, or replaced in a way that a power failure may undo.
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
