"""What is done with a journal file that does not end where its last record ends: keep the evidence, then cut."""

from __future__ import annotations

from mmap import mmap

from kestrel.disk.files import Disk
from kestrel.journal.fileset import PRIVATE_FOLDER
from kestrel.journal.replay import ReplayEnd

_CHUNK_BYTES = 1 << 20
_NAME_BYTES = 230


def damaged_folder(folder: bytes) -> bytes:
    """Where copies of what was cut are kept."""
    return folder + b"/" + PRIVATE_FOLDER + b"/damaged"


def repair(disk: Disk, folder: bytes, file_name: bytes, contents: mmap | bytes, end: ReplayEnd, now_ms: int) -> bytes:
    """Set aside what stands behind the last good record and cut the file there; returns the copy's path.

    A file whose first record is damaged is moved whole: there may be something quite different in it. A crash
    in between leaves the file as it was, to be repaired again.
    """
    path = folder + b"/" + file_name
    disk.make_folder(damaged_folder(folder))
    copy = _unused_path(disk, folder, file_name, now_ms)
    if end.offset == 0 and not end.is_unfinished:
        disk.rename(path, copy)
        return copy
    descriptor = disk.open_append(copy)
    try:
        for offset in range(end.offset, len(contents), _CHUNK_BYTES):
            disk.write(descriptor, contents[offset : offset + _CHUNK_BYTES])
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    disk.sync_folder(damaged_folder(folder))
    descriptor = disk.open_append(path)
    try:
        disk.cut(descriptor, end.offset)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return copy


def _unused_path(disk: Disk, folder: bytes, file_name: bytes, number: int) -> bytes:
    """A new name for a copy: that of the file, as far as the file system has room for it, and a number."""
    taken = set(disk.list_files(damaged_folder(folder)))
    while (name := b"%b.%d" % (file_name[:_NAME_BYTES], number)) in taken:
        number += 1
    return damaged_folder(folder) + b"/" + name
