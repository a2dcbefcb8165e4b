"""A reader of a planned file that finds it after a rename and stops at its planned length."""

from __future__ import annotations

import errno
import os
from typing import Final

from kestrel.disk.files import Disk
from kestrel.spark.table.planned_file import IdentifiedReader, PlannedFile

_ATTEMPTS: Final = 5
"""Limit of attempts; a file is renamed once or twice in its life."""


class PlannedReader(IdentifiedReader):
    """An open planned file, with its length at planning time. Raises OSError, or FileNotFoundError if it is gone."""

    def __init__(self, disk: Disk, file: PlannedFile) -> None:
        path = file.path
        for _ in range(_ATTEMPTS):
            try:
                super().__init__(disk, path)
            except FileNotFoundError:
                pass
            else:
                if self.number == file.identity.number:
                    break
                self.close()
            path = _renamed(file)  # a server has rotated it, or is packing
        else:
            raise _not_there(file)
        try:
            self._cut(file)
        except OSError:
            self.close()
            raise

    def _cut(self, file: PlannedFile) -> None:
        """Limit the file to its planned length. Raises OSError if it is shorter or another file."""
        if self.size < file.size:
            raise OSError(errno.EIO, "the file became shorter after the reading was planned", file.path)
        if file.identity.sample not in (None, self.sample(file.size)):  # the inode number was reused
            raise _not_there(file)
        self.size = file.size


def _renamed(file: PlannedFile) -> bytes:
    """Return the current path of the file, found by its inode number."""
    with os.scandir(file.folder) as entries:
        for entry in entries:
            number = entry.stat().st_ino if entry.is_symlink() and entry.is_file() else entry.inode()
            if number == file.identity.number:
                return entry.path
    raise _not_there(file)


def _not_there(file: PlannedFile) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file.path)
