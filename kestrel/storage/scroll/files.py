"""Functions that replace, copy, sync and truncate the files of a scroll."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kestrel.disk import crash_points
from kestrel.disk.files import AppendFile, Disk
from kestrel.disk.reader import FileReader, copy_range, erased_on_error
from kestrel.scroll.fileset import temporary_name


def write_file(disk: Disk, path: bytes, data: bytes, number: int, *, is_synced: bool) -> bytes:
    """Write `data` to a temporary file that will replace the file `path`. Return the temporary path.

    If `is_synced` is true, sync the file. If an OSError is raised, no temporary file is left.
    """
    temporary = temporary_name(path, number)
    with erased_on_error(disk, [temporary]):
        descriptor = disk.open_append(temporary)
        try:
            disk.write(descriptor, data)
            if is_synced:
                disk.sync(descriptor)
        finally:
            disk.close(descriptor)
    return temporary


def replace_file(disk: Disk, path: bytes, data: bytes, number: int, *, is_synced: bool) -> None:
    """Replace the content of the file `path` atomically: a crash or an OSError leaves the old or the new content.

    If `is_synced` is true, sync the new file before it replaces the old one.
    """
    temporary = write_file(disk, path, data, number, is_synced=is_synced)
    disk.crash_point(crash_points.COPY_WRITTEN)
    with erased_on_error(disk, [temporary]):
        disk.rename(temporary, path)
    disk.crash_point(crash_points.COPY_PUBLISHED)


def copy_file(disk: Disk, path: bytes, size: int, number: int) -> bytes:
    """Copy the first `size` bytes of the file `path` to a temporary file and sync it. Return the temporary path."""
    temporary = temporary_name(path, number)
    with erased_on_error(disk, [temporary]), FileReader(disk, path) as reader:
        copy_range(disk, reader, 0, size, temporary)
    return temporary


def sync_files(disk: Disk, folder: bytes, paths: Sequence[bytes]) -> None:
    """Sync the files in `paths` that exist, then the folder."""
    for path in paths:
        with suppress(FileNotFoundError):
            descriptor = disk.open_read(path)
            try:
                disk.sync(descriptor)
            finally:
                disk.close(descriptor)
    disk.sync_folder(folder)


def truncate_if_possible(file: AppendFile, size: int) -> None:
    """Truncate the file to `size` bytes without a sync, and ignore errors.

    The truncation survives the end of the process even if syncs fail, but not a power failure. Use `truncate_file` for
    a durable truncation.
    """
    with suppress(OSError):
        file.cut(size)
    file.has_torn_tail = True


def truncate_file(disk: Disk, file: AppendFile, size: int, number: int, *, is_anew: bool) -> None:
    """Truncate the file to `size` bytes durably, or replace it with a synced copy of its first `size` bytes.

    `is_anew` requires a copy. Pass it after a failed sync, because a second sync of the same file proves nothing.
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
