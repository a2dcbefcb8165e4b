"""The storage that a queue folder belongs to. Another one would take its files for damaged."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.errors import StorageError

_PREFIX: Final = b"storage-"
"""Prefix of an empty file in the private folder. The rest of its name is the name of the storage."""


def claim_folder(disk: Disk, folder: bytes, storage: str, looks_like: str | None = None) -> None:
    """Record that the folder belongs to `storage`, unless that is already recorded.

    `looks_like` names another storage if the files look like its files. It is used only if nothing is recorded. If
    recording fails, for example on a full disk, a later start repeats it. Raises `StorageError` if the folder belongs
    to another storage or looks like it, or OSError if the folder cannot be listed.
    """
    private = folder + b"/" + PRIVATE_FOLDER
    ours = _PREFIX + storage.encode("ascii")
    names = [name for name in disk.list_files(private) if name.startswith(_PREFIX)]
    if not names and looks_like is not None:
        shown = folder.decode("utf-8", "backslashreplace")
        raise StorageError(
            f"there are queues of {looks_like} in the folder {shown}: start with --storage {looks_like}:{shown}, or"
            " name another folder"
        )
    if not names:
        with suppress(OSError):  # on a full disk, a later start records it
            disk.close(disk.open_append(private + b"/" + ours))
    elif ours not in names:
        owner = names[0].removeprefix(_PREFIX).decode("utf-8", "backslashreplace")
        shown = folder.decode("utf-8", "backslashreplace")
        raise StorageError(
            f"the queue folder {shown} belongs to {owner}: start with --storage {owner}:{shown}, or name another folder"
        )


def kind_of(disk: Disk, folder: bytes) -> str | None:
    """Return the name of the storage that the folder belongs to, or None if nothing is recorded. Raises OSError."""
    try:
        names = disk.list_files(folder + b"/" + PRIVATE_FOLDER)
    except FileNotFoundError:
        return None
    kinds = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    return kinds[0].decode("utf-8", "backslashreplace") if kinds else None
