"""A file of a journal at planning time: its owner, its length, its identity, and a reader that finds it again."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader

JOURNAL: Final = "journal"
SCROLL: Final = "scroll"

_SAMPLE_BYTES: Final = 256
"""Number of bytes that are sampled at the start and at the end of a file."""

_DIGEST_BYTES: Final = 16


class FileKind(Enum):
    """The role of a file in its journal, as named in the tables."""

    CURRENT = "current"
    ROTATED = "rotated"
    PACK = "pack"
    WRITER = "writer"
    READER = "reader"
    ARCHIVED = "archived"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The owner of a file. The fields are the first columns of the tables."""

    server: str
    folder: str
    format: str
    journal: str
    queue: str
    file: str


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file at planning time. It is read up to its length at that time.

    The numbers and samples of files detect that a name or an inode was reused for another file. They exclude the device
    number, which may differ between machines.
    """

    owner: FileOrigin
    folder: bytes
    file_name: bytes
    kind: FileKind
    size: int
    number: int
    """Inode number."""
    sample: bytes | None
    """Digest of the bytes at the start and before the end; None if the file could not be read."""
    modified_s: float
    order: int | None = None
    """Position among the files of its journal; None for a reader file, or if it is unknown."""
    reader: bytes = b""
    """Name of the reader as in a TARGETS record; empty unless this is a reader file."""

    @property
    def path(self) -> bytes:
        return self.folder + b"/" + self.file_name

    @property
    def is_scroll(self) -> bool:
        return self.owner.format == SCROLL

    @property
    def is_reader(self) -> bool:
        return bool(self.reader)


class IdentifiedReader(FileReader):
    """An open file with its inode number and modification time. Raises OSError."""

    def __init__(self, disk: Disk, path: bytes) -> None:
        super().__init__(disk, path)
        state = os.fstat(self._descriptor)
        self.number = state.st_ino
        self.modified_s = state.st_mtime

    def sample(self, size: int) -> bytes:
        """Return a digest of the first bytes, and of the last bytes of the file at length `size`."""
        first = self.read(0, min(size, _SAMPLE_BYTES))
        last = self.read(max(0, size - _SAMPLE_BYTES), min(size, _SAMPLE_BYTES))
        return blake2b(first + last, digest_size=_DIGEST_BYTES).digest()


class FileSnapshot(NamedTuple):
    """The state of a file at one moment."""

    size: int
    number: int
    sample: bytes | None
    modified_s: float


def snapshot_file(disk: Disk, path: bytes) -> FileSnapshot:
    """Return the state of a file. An unreadable file gets no sample. Raises FileNotFoundError."""
    try:
        with IdentifiedReader(disk, path) as reader:
            return FileSnapshot(reader.size, reader.number, reader.sample(reader.size), reader.modified_s)
    except FileNotFoundError:
        raise
    except OSError:
        state = os.stat(path)
        return FileSnapshot(state.st_size, state.st_ino, None, state.st_mtime)


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
                if self.number == file.number:
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
        if file.sample not in (None, self.sample(file.size)):  # the inode number was reused
            raise _not_there(file)
        self.size = file.size


def _renamed(file: PlannedFile) -> bytes:
    """Return the current path of the file, found by its inode number."""
    with os.scandir(file.folder) as entries:
        for entry in entries:
            number = entry.stat().st_ino if entry.is_symlink() and entry.is_file() else entry.inode()
            if number == file.number:
                return entry.path
    raise _not_there(file)


def _not_there(file: PlannedFile) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file.path)
