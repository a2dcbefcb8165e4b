"""Repair of a file that does not end with a complete record: copy the bad bytes to quarantine, then cut them off."""

from __future__ import annotations

from typing import Final, NamedTuple

from kestrel.disk import crash_points
from kestrel.disk.files import Disk, appending
from kestrel.disk.folders import DAMAGED_FOLDER
from kestrel.disk.reader import FileReader, copy_range, erased_on_error

_NAME_BYTES: Final = 225

TAIL_SUFFIX: Final = b".tail"

MAX_TAILS: Final = 100
"""Maximum number of unfinished tails in the folder of damaged files."""


TORN_RECORD: Final = "the last record is cut short"


class ReadEnd:
    """The offset after the last good record of a file, and why reading stopped there.

    `problem` is None at the regular end of the file. `is_unfinished` is true for an incomplete last record, the usual
    trace of a crash, and false for damage. `records` is the number of good records that were read. `is_closed` is true
    if a record that was appended there would not be found: after a STATE_DUMP in a journal, or before zeros in a
    scroll.
    """

    __slots__ = ("is_closed", "is_unfinished", "offset", "problem", "records")

    def __init__(self, offset: int, problem: str | None = None, *, is_unfinished: bool = False) -> None:
        self.offset = offset
        self.problem = problem
        self.is_unfinished = is_unfinished
        self.records = 0
        self.is_closed = False


class QuarantinedCopy(NamedTuple):
    """The path of a quarantined copy, and its size in bytes."""

    copy: bytes
    size: int


def repair(disk: Disk, folder: bytes, file_name: bytes, end: ReadEnd, now_ms: int) -> QuarantinedCopy:
    """Quarantine the bytes after the last good record, and cut the file there.

    A file whose first record is damaged is moved as a whole, because it may not be a file of records. If the server
    crashes during a repair, the next start repeats it.
    """
    path = folder + b"/" + file_name
    if not end.offset and not end.is_unfinished:
        damaged = folder + b"/" + DAMAGED_FOLDER
        disk.make_folder(damaged)
        copy, size = _unused_path(disk, damaged, file_name, now_ms, b""), disk.length(path)
        disk.rename(path, copy)
        disk.sync_folder(folder)  # a power failure must not bring the damage back behind later records
        return QuarantinedCopy(copy, size)
    repaired = quarantine(disk, folder, file_name, end, now_ms)
    with appending(disk, path) as descriptor:
        disk.cut(descriptor, end.offset)
        disk.crash_point(crash_points.TAIL_CUT)
        disk.sync(descriptor)
    return repaired


def quarantine(disk: Disk, folder: bytes, file_name: bytes, end: ReadEnd, now_ms: int) -> QuarantinedCopy:
    """Copy the bytes after the last good record to the folder of damaged files. The file itself is not changed.

    Unfinished tails are left by writes that were not acknowledged, so only the last `MAX_TAILS` are kept.
    """
    path = folder + b"/" + file_name
    damaged = folder + b"/" + DAMAGED_FOLDER
    disk.make_folder(damaged)
    if end.is_unfinished:
        _erase_oldest_tails(disk, damaged)
    copy = _unused_path(disk, damaged, file_name, now_ms, TAIL_SUFFIX if end.is_unfinished else b"")
    with FileReader(disk, path) as reader:
        size = reader.size - end.offset
        with erased_on_error(disk, [copy]):  # the file is unchanged, so an incomplete copy is not needed
            copy_range(disk, reader, end.offset, reader.size, copy)
    disk.sync_folder(damaged)
    disk.crash_point(crash_points.TAIL_COPIED)
    return QuarantinedCopy(copy, size)


def _unused_path(disk: Disk, damaged: bytes, file_name: bytes, number: int, suffix: bytes) -> bytes:
    """Return an unused path for a copy: the name of the file, shortened if needed, then a number and `suffix`."""
    taken = set(disk.list_files(damaged))
    while (name := b"%b.%d%b" % (file_name[:_NAME_BYTES], number, suffix)) in taken:
        number += 1
    return damaged + b"/" + name


def _erase_oldest_tails(disk: Disk, damaged: bytes) -> None:
    tails = [name for name in disk.list_files(damaged) if name.endswith(TAIL_SUFFIX)]
    if len(tails) >= MAX_TAILS:
        tails.sort(key=_number_of)
        for name in tails[: len(tails) - MAX_TAILS + 1]:
            disk.erase(damaged + b"/" + name)


def _number_of(tail: bytes) -> int:
    number = tail.removesuffix(TAIL_SUFFIX).rpartition(b".")[2]
    return int(number) if number.isdigit() else 0
