"""Packing: replacing many journal files by one, so that no crash loses or duplicates an item.

The new file is written and synced under a temporary name. Renaming it to ``name.<ms>.pack`` publishes it: from then on
it replaces every rotated file up to its own number. Then these files are moved away, and the suffix is removed. An
empty pack is erased.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable

from kestrel.disk import crash_points
from kestrel.disk.files import Disk
from kestrel.disk.folders import DAMAGED_FOLDER, ERASE_FOLDER
from kestrel.disk.reader import FileReader
from kestrel.journal.cursor import JournalCursor
from kestrel.journal.fileset import PACK_SUFFIX, QueueFiles, pack_name, rotated_name, temporary_name


class WriteStopped(Exception):
    """The writing of a pack was stopped, and its temporary file was erased."""


class PublishIncomplete(OSError):
    """The pack is published, but the files that it replaces could not be moved away. The next start does that."""


def write_temporary(
    disk: Disk,
    folder: bytes,
    queue: bytes,
    number: int,
    runs: Iterable[bytes],
    most_bytes: int,
    is_stopped: Callable[[], bool],
) -> None:
    """Write runs of records, `most_bytes` bytes at most, to the queue's temporary file with `number`, and sync it.

    `is_stopped` is called before each run. Raise `WriteStopped` if it returns True, or OSError; then erase the file.
    """
    # An attempt could use up the space that other queues need.
    if disk.free_bytes(folder) < most_bytes:
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
            disk.crash_point(crash_points.PACK_WRITTEN)
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.crash_point(crash_points.PACK_SYNCED)
    except (OSError, WriteStopped):
        disk.erase(path)
        raise


def publish(disk: Disk, folder: bytes, queue: bytes, number: int, replaced: Iterable[bytes], size: int) -> list[bytes]:
    """Replace the rotated files `replaced` by the temporary file with `number`, which has `size` bytes.

    Return the paths, relative to `folder`, of files that the caller must erase. Raise OSError if nothing was replaced,
    or `PublishIncomplete` if the new file is valid but the old ones are still in place.
    """
    packed = pack_name(queue, number)
    # Done first, because it must not fail after the pack is published.
    disk.make_folder(folder + b"/" + ERASE_FOLDER)
    disk.rename(folder + b"/" + temporary_name(queue, number), folder + b"/" + packed)
    disk.crash_point(crash_points.PACK_PUBLISHED)
    try:
        disk.sync_folder(folder)
    except OSError:
        disk.erase(folder + b"/" + packed)
        raise
    disk.crash_point(crash_points.PACK_PUBLISHED_FOR_GOOD)
    try:
        moved = _finish(disk, folder, packed, replaced, ERASE_FOLDER)
    except OSError as error:
        raise PublishIncomplete(error.errno, error.strerror) from error
    return moved + ([] if size else [rotated_name(queue, number)])


def finish_interrupted(disk: Disk, folder: bytes, files: QueueFiles) -> None:
    """Finish at a start the work that a crash interrupted: erase temporary files and complete the newest pack.

    If the pack is damaged, the files that it replaces are moved to the folder of damaged files instead of being erased,
    because they may contain items that the pack has lost.
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
    is_undamaged = _is_undamaged(disk, folder + b"/" + newest.file_name)
    target = ERASE_FOLDER if is_undamaged else DAMAGED_FOLDER
    disk.make_folder(folder + b"/" + target)
    for path in _finish(disk, folder, newest.file_name, names, target):
        if is_undamaged:
            disk.erase(folder + b"/" + path)
    files.packs.clear()
    files.rotated[: len(replaced)] = [packed]


def _is_undamaged(disk: Disk, path: bytes) -> bool:
    with FileReader(disk, path) as reader:
        cursor = JournalCursor(reader)
        deque(cursor.records(), maxlen=0)
    return cursor.end.problem is None


def _finish(disk: Disk, folder: bytes, packed: bytes, replaced: Iterable[bytes], target: bytes) -> list[bytes]:
    moved = []
    for file_name in replaced:
        path = target + b"/" + file_name
        try:
            disk.rename(folder + b"/" + file_name, folder + b"/" + path)
        except FileNotFoundError:
            # The queue was deleted meanwhile, or the file was moved before a crash.
            continue
        moved.append(path)
    disk.sync_folder(folder)
    disk.crash_point(crash_points.PACK_REPLACED)
    disk.rename(folder + b"/" + packed, folder + b"/" + packed.removesuffix(PACK_SUFFIX))
    disk.crash_point(crash_points.PACK_FINISHED)
    disk.sync_folder(folder)
    return moved
