"""Replacing many journal files by one, so that no crash point loses or doubles an item.

The new file is written and synced under a temporary name. Renaming it to ``name.<ms>.pack`` publishes it: from
then on it stands for every rotated file numbered up to its own. Those are erased, and the suffix goes last.
"""

from __future__ import annotations

from collections.abc import Iterable

from kestrel.disk.files import Disk
from kestrel.journal.fileset import QueueFiles, rotated_name, temporary_name

_CHUNK_BYTES = 1 << 20
_PACK = b".pack"


def write_temporary(disk: Disk, folder: bytes, queue: bytes, number: int, records: Iterable[bytes]) -> int:
    """Write these records to the queue's temporary file of that number, and sync it; returns its length."""
    descriptor = disk.open_append(folder + b"/" + temporary_name(queue, number))
    try:
        disk.cut(descriptor, 0)
        chunk = bytearray()
        for record in records:
            chunk += record
            if len(chunk) >= _CHUNK_BYTES:
                disk.write(descriptor, bytes(chunk))
                chunk.clear()
        disk.write(descriptor, bytes(chunk))
        disk.sync(descriptor)
        return disk.size(descriptor)
    finally:
        disk.close(descriptor)


def publish(disk: Disk, folder: bytes, queue: bytes, number: int, replaced: Iterable[bytes]) -> None:
    """Let the temporary file of that number take the place of these rotated files, numbered up to it."""
    rotated = folder + b"/" + rotated_name(queue, number)
    disk.rename(folder + b"/" + temporary_name(queue, number), rotated + _PACK)
    disk.sync_folder(folder)
    _finish(disk, folder, rotated, replaced)


def clean_up(disk: Disk, folder: bytes, files: QueueFiles) -> None:
    """Do at start what a crash left undone: erase temporary files, finish packs."""
    for temporary in files.temporary:
        disk.erase(folder + b"/" + temporary.file_name)
    files.temporary.clear()
    if not files.packs:
        return
    newest = files.packs[-1]
    replaced = [file for file in files.rotated if file.number <= newest.number]
    older_packs = files.packs[:-1]
    packed = newest._replace(file_name=newest.file_name.removesuffix(_PACK))
    names = [file.file_name for file in (*replaced, *older_packs) if file.file_name != packed.file_name]
    _finish(disk, folder, folder + b"/" + packed.file_name, names)
    files.packs.clear()
    files.rotated[: len(replaced)] = [packed]


def _finish(disk: Disk, folder: bytes, rotated: bytes, replaced: Iterable[bytes]) -> None:
    for file_name in replaced:
        disk.erase(folder + b"/" + file_name)
    disk.rename(rotated + _PACK, rotated)
    disk.sync_folder(folder)
