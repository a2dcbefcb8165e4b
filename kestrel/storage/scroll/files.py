"""Files of a scroll that are written anew under their names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kestrel.disk import crash_points
from kestrel.disk.append_file import AppendFile
from kestrel.disk.copy import copy_range
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.scroll.fileset import temporary_name


def write_file(disk: Disk, path: bytes, data: bytes, number: int, *, is_synced: bool) -> bytes:
    """Write what is to take the place of that file, and return where it stands until then.

    `is_synced`: it is on the medium then. An OSError leaves nothing.
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
    except OSError:
        with suppress(OSError):
            disk.erase(temporary)
        raise
    return temporary


def replace_file(disk: Disk, path: bytes, data: bytes, number: int, *, is_synced: bool) -> None:
    """Let the file of that path hold that, at once: a crash, or an OSError, leaves the old file or the new one."""
    temporary = write_file(disk, path, data, number, is_synced=is_synced)
    disk.crash_point(crash_points.COPY_WRITTEN)
    try:
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.erase(temporary)
        raise
    disk.crash_point(crash_points.COPY_PUBLISHED)


def copy_file(disk: Disk, path: bytes, size: int, number: int) -> bytes:
    """Copy what the file holds up to that size, to take its place, and return where it stands, on the medium."""
    temporary = temporary_name(path, number)
    try:
        with FileReader(disk, path) as reader:
            copy_range(disk, reader, 0, size, temporary)
    except OSError:
        with suppress(OSError):
            disk.erase(temporary)
        raise
    return temporary


def sync_files(disk: Disk, folder: bytes, paths: Sequence[bytes]) -> None:
    """Return when these files, those of them that are there, and the names in the folder are on the medium."""
    for path in paths:
        with suppress(FileNotFoundError):
            descriptor = disk.open_read(path)
            try:
                disk.sync(descriptor)
            finally:
                disk.close(descriptor)
    disk.sync_folder(folder)


def truncate_if_possible(file: AppendFile, size: int) -> None:
    """Cut the file at that size for a process that ends now. Only `truncate_file` cuts it for good.

    It makes no sync, and so helps where none works any more.
    """
    with suppress(OSError):
        file.cut(size)
    file.has_torn_tail = True


def truncate_file(disk: Disk, file: AppendFile, size: int, number: int, *, is_anew: bool) -> None:
    """Let nothing behind that size count, for good: cut the file, or let a copy of its good part take its place.

    `is_anew`: a sync of it may have failed, so that another one of the same file would mean nothing.
    """
    is_cut = False
    if not is_anew:
        with suppress(OSError):
            file.cut(size)
            file.sync()
            is_cut = True
    file.close()
    if not is_cut:
        disk.rename(copy_file(disk, file.path, size, number), file.path)
        file.replaced(size)
