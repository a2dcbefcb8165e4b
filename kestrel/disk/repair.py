"""What is done with a file of records that does not end where its last record ends: keep the evidence, then cut."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from kestrel.disk import crash_points
from kestrel.disk.copy import copy_range
from kestrel.disk.files import Disk
from kestrel.disk.folders import DAMAGED_FOLDER
from kestrel.disk.reader import FileReader

_NAME_BYTES: Final = 225

TAIL_SUFFIX: Final = b".tail"

MAX_TAILS: Final = 100
"""Of the whole folder."""


TORN_RECORD: Final = "the last record is cut short"


class ReadEnd:
    """Where the reading of one file ended: the offset behind the last good record, and why it went no further.

    `problem` is None at the proper end of the file; `is_unfinished` tells a cut-short last record, the usual
    trace of a crash, from damage.
    """

    __slots__ = ("is_unfinished", "offset", "problem")

    def __init__(self, offset: int, problem: str | None = None, *, is_unfinished: bool = False) -> None:
        self.offset = offset
        self.problem = problem
        self.is_unfinished = is_unfinished


class QuarantinedCopy(NamedTuple):
    """What a repair set aside: the path of the copy, and how many bytes are in it."""

    copy: bytes
    size: int


def repair(disk: Disk, folder: bytes, file_name: bytes, end: ReadEnd, now_ms: int) -> QuarantinedCopy:
    """Set aside the bytes behind the last good record and cut the file there.

    A file whose first record is damaged is moved whole, because it may hold something else. A crash in between leaves
    the file as it was, and the next start repairs it.
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
    descriptor = disk.open_append(path)
    try:
        disk.cut(descriptor, end.offset)
        disk.crash_point(crash_points.TAIL_CUT)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return repaired


def quarantine(disk: Disk, folder: bytes, file_name: bytes, end: ReadEnd, now_ms: int) -> QuarantinedCopy:
    """Copy the bytes behind the last good record to the folder of damaged files, and leave the file as it is.

    Of unfinished ends, which a crash leaves of writes that were not confirmed, the last `MAX_TAILS` are kept.
    """
    path = folder + b"/" + file_name
    damaged = folder + b"/" + DAMAGED_FOLDER
    disk.make_folder(damaged)
    if end.is_unfinished:
        _erase_oldest_tails(disk, damaged)
    copy = _unused_path(disk, damaged, file_name, now_ms, TAIL_SUFFIX if end.is_unfinished else b"")
    with FileReader(disk, path) as reader:
        size = reader.size - end.offset
        try:
            copy_range(disk, reader, end.offset, reader.size, copy)
        except OSError:  # the file stays as it is, so a part of it need not be kept
            with suppress(OSError):
                disk.erase(copy)
            raise
    disk.sync_folder(damaged)
    disk.crash_point(crash_points.TAIL_COPIED)
    return QuarantinedCopy(copy, size)


def _unused_path(disk: Disk, damaged: bytes, file_name: bytes, number: int, suffix: bytes) -> bytes:
    """A new name for a copy: that of the file, as far as the file system has room for it, and a number."""
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
