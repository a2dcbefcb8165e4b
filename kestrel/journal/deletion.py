"""Atomic deletion of all files of a queue, so that a restart after a crash replays either all or none of them.

A pack is valid only together with the files after it, because it has an empty item for each item that they remove. A
deletion therefore begins with one atomic rename: the newest file becomes a deletion mark, ``work.<ms>.deleted``. All
files with a lower number are then ignored. The mark is erased last. A rename needs neither space nor an inode, so a
queue can be deleted on a full disk.
"""

from __future__ import annotations

from collections.abc import Callable

from kestrel.disk import crash_points
from kestrel.disk.files import Disk
from kestrel.journal.fileset import current_name, deleted_name, files_of


def mark_deleted(disk: Disk, folder: bytes, queue: bytes, next_number: Callable[[], int]) -> None:
    """Delete all files of a queue in one step, for `erase_deleted` to erase. Its name can be used again at once.

    Raise OSError if the queue is unchanged.
    """
    path = folder + b"/"
    mark = path + deleted_name(queue, next_number())
    try:
        disk.rename(path + current_name(queue), mark)
    except FileNotFoundError:
        live_files = files_of(queue, disk.list_files(folder)).live_files()
        if not live_files:
            return
        disk.rename(path + live_files[-1].file_name, mark)
    disk.crash_point(crash_points.DELETION_MARKED)


def erase_deleted(disk: Disk, folder: bytes, queue: bytes) -> None:
    """Erase the files that deletion marks cover, then the marks. It may take long. The next start can finish it."""
    files = files_of(queue, disk.list_files(folder)).deleted
    if len(files) > 1:
        # The mark must be durable before a file that it covers is erased.
        disk.sync_folder(folder)
    for file in files[:-1]:
        disk.erase(folder + b"/" + file.file_name)
        disk.crash_point(crash_points.THROWN_AWAY)
    if len(files) > 1:
        disk.sync_folder(folder)
    for file in files[-1:]:
        disk.erase(folder + b"/" + file.file_name)
