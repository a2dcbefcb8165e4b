"""Which backend a queue folder belongs to: another one would not understand its files, and take them for damaged."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.errors import StorageError

_PREFIX: Final = b"storage-"
"""An empty file in the private folder, whose name says it."""


def claim_folder(disk: Disk, folder: bytes, storage: str, looks_like: str | None = None) -> None:
    """Note that the folder is that backend's. Raises `StorageError` if it is another one's, or OSError.

    A folder that nobody has noted anything of may look like that of another backend.
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
        with suppress(OSError):  # on a full disk a later start does it
            disk.close(disk.open_append(private + b"/" + ours))
    elif ours not in names:
        owner = names[0].removeprefix(_PREFIX).decode("utf-8", "backslashreplace")
        shown = folder.decode("utf-8", "backslashreplace")
        raise StorageError(
            f"the queue folder {shown} is one of {owner}: start with --storage {owner}:{shown}, or name another folder"
        )


def kind_of(disk: Disk, folder: bytes) -> str | None:
    """Which backend the folder is noted to be of; None where nobody has noted anything. Raises OSError."""
    try:
        names = disk.list_files(folder + b"/" + PRIVATE_FOLDER)
    except FileNotFoundError:
        return None
    kinds = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
    return kinds[0].decode("utf-8", "backslashreplace") if kinds else None
