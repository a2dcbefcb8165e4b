"""Files of a scroll that are written anew under their names."""

from __future__ import annotations

from contextlib import suppress

from kestrel.disk import steps
from kestrel.disk.appended import AppendedFile
from kestrel.disk.copy import copy_range
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.scroll.fileset import temporary_name


def replace_file(disk: Disk, path: bytes, data: bytes, number: int, *, is_synced: bool) -> None:
    """Let the file of that path hold that, at once: a crash leaves the old file or the new one.

    `is_synced`: it is on the medium before it gets the name. An OSError leaves the old one.
    """
    temporary = temporary_name(path, number)
    try:
        descriptor = disk.open_append(temporary)
        try:
            disk.write(descriptor, data)
            if is_synced:
                disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.reached(steps.COPY_WRITTEN)
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.erase(temporary)
        raise
    disk.reached(steps.COPY_PUBLISHED)


def shorten(disk: Disk, file: AppendedFile, size: int, number: int) -> None:
    """Let nothing behind that size count: cut the file, or if that fails let a copy of its good part take its place."""
    try:
        file.cut(size)
    except OSError:
        file.close()
        copy_writer_file(disk, file.path, size, number)
        file.replaced(size)
    file.close()


def copy_writer_file(disk: Disk, path: bytes, size: int, number: int) -> None:
    """Write what the file holds up to that size to another file, sync that, and let it take the name."""
    temporary = temporary_name(path, number)
    try:
        with FileReader(disk, path) as reader:
            copy_range(disk, reader, 0, size, temporary)
        disk.reached(steps.COPY_WRITTEN)
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.erase(temporary)
        raise
    disk.reached(steps.COPY_PUBLISHED)
