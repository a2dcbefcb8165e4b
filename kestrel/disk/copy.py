"""Copying a range of a file to another file, and the removal of files that could not be completed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES, FileReader


def copy_range(disk: Disk, reader: FileReader, start: int, end: int, path: bytes) -> None:
    """Append the bytes from `start` up to `end` to the file at `path`, and sync it. Create the file if needed."""
    descriptor = disk.open_append(path)
    try:
        for offset in range(start, end, PART_BYTES):
            disk.write(descriptor, reader.read(offset, min(PART_BYTES, end - offset)))
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)


@contextmanager
def erased_on_error(disk: Disk, paths: Collection[bytes]) -> Iterator[None]:
    """Erase the files at `paths` if the block raises an OSError. A file that cannot be erased is left."""
    try:
        yield
    except OSError:
        for path in paths:
            with suppress(OSError):
                disk.erase(path)
        raise
