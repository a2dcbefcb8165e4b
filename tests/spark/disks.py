"""Disks that count reads, or on which something happens."""

from __future__ import annotations

from collections.abc import Callable

from kestrel.disk.files import Disk


class CountingDisk(Disk):
    """A disk that counts the requested bytes."""

    bytes_read = 0

    def read(self, descriptor: int, offset: int, size: int) -> bytes:
        self.bytes_read += size
        return super().read(descriptor, offset, size)


class LivelyDisk(Disk):
    """A disk on which the next event happens after each listing of a folder whose path has this end."""

    def __init__(self, *happenings: Callable[[], object], folder: bytes = b"") -> None:
        self.happenings = list(happenings)
        self.listings = 0
        self._folder = folder

    def list_files(self, folder: bytes) -> list[bytes]:
        names = super().list_files(folder)
        self.listings += 1
        if self.happenings and folder.endswith(self._folder):
            self.happenings.pop(0)()
        return names
