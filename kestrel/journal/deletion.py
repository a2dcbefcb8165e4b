"""Deleting all files of a queue, so that no crash leaves some of them to be replayed without the others.

A pack is correct only together with the files after it: it holds an empty item for each item that they remove. A
deletion therefore begins with one atomic rename: the newest file becomes a deletion mark, ``work.<ms>.deleted``, and no
file with a lower number counts from then on. The mark is erased last. A rename needs neither space nor an inode, so a
queue can be deleted on a full medium.
"""

from __future__ import annotations

from collections.abc import Callable

from kestrel.disk import steps
from kestrel.disk.files import Disk
from kestrel.journal.fileset import current_name, deleted_name, files_of


def mark_deleted(disk: Disk, folder: bytes, queue: bytes, next_number: Callable[[], int]) -> None:
    """Make all files of the queue count no more; another queue may take its name at once.

    Raises OSError, and the queue is as it was.
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
    disk.reached(steps.DELETION_MARKED)


def erase_deleted(disk: Disk, folder: bytes, queue: bytes) -> None:
    """Erase the files that deletion marks cover, then the marks. May take long. A start finishes the work."""
    files = files_of(queue, disk.list_files(folder)).deleted
    if len(files) > 1:
        disk.sync_folder(folder)  # the mark must be on the medium before a file that it covers is erased
    for file in files[:-1]:
        disk.erase(folder + b"/" + file.file_name)
        disk.reached(steps.THROWN_AWAY)
    if len(files) > 1:
        disk.sync_folder(folder)
    for file in files[-1:]:
        disk.erase(folder + b"/" + file.file_name)
