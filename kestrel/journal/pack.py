"""Replacing many journal files by one, so that no crash point loses or doubles an item.

The new file is written and synced under a temporary name. Renaming it to ``name.<ms>.pack`` publishes it: from
then on it stands for every rotated file numbered up to its own. Those go, and the suffix goes last; a new file that
holds nothing goes with it.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable

from kestrel.disk import steps
from kestrel.disk.files import Disk
from kestrel.disk.folders import DAMAGED_FOLDER, ERASE_FOLDER
from kestrel.disk.reader import FileReader
from kestrel.journal.fileset import PACK_SUFFIX, QueueFiles, pack_name, rotated_name, temporary_name
from kestrel.journal.record_cursor import JournalRecordCursor


class WriteStopped(Exception):
    """The writing was stopped; there is no temporary file."""


class PublishIncomplete(OSError):
    """The new file has taken the place of the others for good; that they are out of the way is left to a start."""


def write_temporary(
    disk: Disk,
    folder: bytes,
    queue: bytes,
    number: int,
    runs: Iterable[bytes],
    most_bytes: int,
    is_stopped: Callable[[], bool],
) -> None:
    """Write these runs of records, `most_bytes` at most, to the queue's temporary file of that number, and sync it.

    Raises `WriteStopped` once `is_stopped` says so, which is asked before each run, or OSError; then there is no file.
    """
    if disk.free_bytes(folder) < most_bytes:  # to try would take the last room from those who write to it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path = folder + b"/" + temporary_name(queue, number)
    try:
        descriptor = disk.open_append(path)
        try:
            disk.cut(descriptor, 0)
            for run in runs:
                if is_stopped():
                    raise WriteStopped
                disk.write(descriptor, run)
            disk.reached(steps.PACK_WRITTEN)
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.reached(steps.PACK_SYNCED)
    except (OSError, WriteStopped):
        disk.erase(path)
        raise


def publish(disk: Disk, folder: bytes, queue: bytes, number: int, replaced: Iterable[bytes], size: int) -> list[bytes]:
    """Let the temporary file of that number and size take the place of these rotated files, numbered up to it.

    Returns the paths, in that folder, of what is to be erased yet. Raises OSError, and the rotated files count; or
    `PublishIncomplete`, and the new one does.
    """
    packed = pack_name(queue, number)
    disk.make_folder(folder + b"/" + ERASE_FOLDER)  # once the pack is published, this must not fail
    disk.rename(folder + b"/" + temporary_name(queue, number), folder + b"/" + packed)
    disk.reached(steps.PACK_PUBLISHED)
    try:
        disk.sync_folder(folder)
    except OSError:
        disk.erase(folder + b"/" + packed)
        raise
    disk.reached(steps.PACK_PUBLISHED_FOR_GOOD)
    try:
        moved = _finish(disk, folder, packed, replaced, ERASE_FOLDER)
    except OSError as error:
        raise PublishIncomplete(error.errno, error.strerror) from error
    return moved + ([] if size else [rotated_name(queue, number)])


def finish_interrupted(disk: Disk, folder: bytes, files: QueueFiles) -> None:
    """Do at start what a crash left undone: erase temporary files, finish packs.

    What a damaged pack replaces is kept with the damaged files: it may hold what the pack does not.
    """
    for temporary in files.temporary:
        disk.erase(folder + b"/" + temporary.file_name)
    files.temporary.clear()
    newest, replaced = files.replaced_by_pack()
    if newest is None:
        return
    older_packs = files.packs[:-1]
    packed = newest._replace(file_name=newest.file_name.removesuffix(PACK_SUFFIX))
    names = [file.file_name for file in (*replaced, *older_packs)]
    is_whole = _is_whole(disk, folder + b"/" + newest.file_name)
    target = ERASE_FOLDER if is_whole else DAMAGED_FOLDER
    disk.make_folder(folder + b"/" + target)
    for path in _finish(disk, folder, newest.file_name, names, target):
        if is_whole:
            disk.erase(folder + b"/" + path)
    files.packs.clear()
    files.rotated[: len(replaced)] = [packed]


def _is_whole(disk: Disk, path: bytes) -> bool:
    with FileReader(disk, path) as reader:
        scan = JournalRecordCursor(reader)
        deque(scan, maxlen=0)
    return scan.end.problem is None


def _finish(disk: Disk, folder: bytes, packed: bytes, replaced: Iterable[bytes], target: bytes) -> list[bytes]:
    moved = []
    for file_name in replaced:
        path = target + b"/" + file_name
        try:
            disk.rename(folder + b"/" + file_name, folder + b"/" + path)
        except FileNotFoundError:  # its queue was deleted meanwhile, or this was begun before a crash
            continue
        moved.append(path)
    disk.sync_folder(folder)
    disk.reached(steps.PACK_REPLACED)
    disk.rename(folder + b"/" + packed, folder + b"/" + packed.removesuffix(PACK_SUFFIX))
    disk.reached(steps.PACK_FINISHED)
    disk.sync_folder(folder)
    return moved
