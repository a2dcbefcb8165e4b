"""What is done with a journal file that does not end where its last record ends: keep the evidence, then cut."""

from __future__ import annotations

from typing import NamedTuple

from kestrel.disk.files import Disk
from kestrel.journal import steps
from kestrel.journal.copy import copy_range
from kestrel.journal.fileset import PRIVATE_FOLDER
from kestrel.journal.reader import JournalReader, ReplayEnd

_NAME_BYTES = 230


class Repair(NamedTuple):
    """What a repair set aside: the path of the copy, and how many bytes are in it."""

    copy: bytes
    size: int


def damaged_folder(folder: bytes) -> bytes:
    """Where copies of what was cut are kept."""
    return folder + b"/" + PRIVATE_FOLDER + b"/damaged"


def repair(disk: Disk, folder: bytes, file_name: bytes, end: ReplayEnd, now_ms: int) -> Repair:
    """Set aside what stands behind the last good record and cut the file there.

    A file whose first record is damaged is moved whole: there may be something quite different in it. A crash
    in between leaves the file as it was, to be repaired again.
    """
    path = folder + b"/" + file_name
    disk.make_folder(damaged_folder(folder))
    copy = _unused_path(disk, folder, file_name, now_ms)
    with JournalReader(disk, path) as reader:
        size = reader.size - end.offset
        if end.offset or end.is_unfinished:
            copy_range(disk, reader, end.offset, reader.size, copy)
    if not end.offset and not end.is_unfinished:
        disk.rename(path, copy)
        return Repair(copy, size)
    disk.sync_folder(damaged_folder(folder))
    disk.reached(steps.TAIL_COPIED)
    descriptor = disk.open_append(path)
    try:
        disk.cut(descriptor, end.offset)
        disk.reached(steps.TAIL_CUT)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return Repair(copy, size)


def _unused_path(disk: Disk, folder: bytes, file_name: bytes, number: int) -> bytes:
    """A new name for a copy: that of the file, as far as the file system has room for it, and a number."""
    taken = set(disk.list_files(damaged_folder(folder)))
    while (name := b"%b.%d" % (file_name[:_NAME_BYTES], number)) in taken:
        number += 1
    return damaged_folder(folder) + b"/" + name
