"""Deleting a queue that has several files, so that no crash point leaves some of them to be replayed alone.

A pack, and with it its queue, makes sense only together with the files after it: for each item that was removed there,
an empty one stands in it. So first an empty pack with the greatest number of all is made. It stands for every file of
the queue: from then on the queue is empty, whatever is left of them. It goes last.
"""

from __future__ import annotations

from collections.abc import Callable

from kestrel.disk import steps
from kestrel.disk.files import Disk
from kestrel.journal.fileset import QueueFiles, current_name, files_of, pack_name, rotated_name


def mark_deleted(disk: Disk, folder: bytes, queue: bytes, next_number: Callable[[], int]) -> int:
    """Let all files of the queue count no more; its name is free for another one at once. Returns the mark's number.

    A queue whose newest file is such a mark is none (`mark_of_deleted`).

    Raises OSError, and the queue is as it was.
    """
    current = folder + b"/" + current_name(queue)
    rotated = folder + b"/" + rotated_name(queue, next_number())
    try:
        disk.rename(current, rotated)
        has_current = True
    except FileNotFoundError:
        has_current = False
    disk.reached(steps.ROTATED)
    number = next_number()
    try:
        disk.close(disk.open_append(folder + b"/" + pack_name(queue, number)))
    except OSError:
        if has_current:
            disk.rename(rotated, current)
        raise
    disk.reached(steps.DELETION_MARKED)
    return number


def mark_of_deleted(disk: Disk, folder: bytes, files: QueueFiles) -> int | None:
    """The number of the mark if the queue was deleted, and nothing has been put since; else None. Raises OSError."""
    if files.has_current or not files.packs:
        return None
    newest = files.packs[-1]
    is_last = all(file.number < newest.number for file in files.rotated)
    return newest.number if is_last and disk.length(folder + b"/" + newest.file_name) == 0 else None


def erase_deleted(disk: Disk, folder: bytes, queue: bytes, mark: int) -> None:
    """Erase the files that the mark stands for, and it at last. Takes its time; a start does what is left undone."""
    disk.sync_folder(folder)  # nothing goes before the mark is there for good
    files = files_of(queue, disk.list_files(folder))
    for file in (*files.rotated, *files.packs, *files.temporary):
        if file.number < mark:
            disk.erase(folder + b"/" + file.file_name)
            disk.reached(steps.THROWN_AWAY)
    disk.sync_folder(folder)
    disk.erase(folder + b"/" + pack_name(queue, mark))
