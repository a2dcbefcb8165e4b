"""A file of a journal as it was when a reading was planned: whose it is, how long, and how it is told from others."""

from __future__ import annotations

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
"""So much is looked at where a file begins and where it ended."""

_DIGEST_BYTES: Final = 16


class FileKind(Enum):
    """What a file is to its journal. The names are those of the table."""

    CURRENT = "current"
    ROTATED = "rotated"
    PACK = "pack"
    WRITER = "writer"
    READER = "reader"
    ARCHIVED = "archived"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Whose a file is. The fields are the first columns of the tables."""

    server: str
    folder: str
    format: str
    journal: str
    queue: str
    file: str


class Identity(NamedTuple):
    """What tells a file from another one that has got its name, or its number once it was erased.

    Not the device: each machine that mounts it may have another number for it.
    """

    number: int
    """The inode's."""
    sample: bytes | None
    """A digest of how the file begins and of what stands before the end; None where it could not be read."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file as it was when the reading was planned: it is read to where it ended then."""

    owner: FileOrigin
    folder: bytes
    file_name: bytes
    kind: FileKind
    size: int
    identity: Identity
    modified_s: float
    order: int | None = None
    """Its place among the files of its journal; None for a reader file."""
    reader: bytes = b""
    """Of a reader file, as a TARGETS calls it."""

    @property
    def path(self) -> bytes:
        """Where it was."""
        return self.folder + b"/" + self.file_name

    @property
    def is_scroll(self) -> bool:
        """Whether its records are those of scrolls."""
        return self.owner.format == SCROLL

    @property
    def is_reader(self) -> bool:
        """Whether it says what one reader of a scroll is done with."""
        return self.order is None


class IdentifiedReader(FileReader):
    """An open file that can be told from others. Raises OSError."""

    def __init__(self, disk: Disk, path: bytes) -> None:
        super().__init__(disk, path)
        state = os.fstat(self._descriptor)
        self.number = state.st_ino
        self.modified_s = state.st_mtime

    def sample(self, size: int) -> bytes:
        """A digest of the bytes where it begins, and of those before its end when it was of that size."""
        first = self.read(0, min(size, _SAMPLE_BYTES))
        last = self.read(max(0, size - _SAMPLE_BYTES), min(size, _SAMPLE_BYTES))
        return blake2b(first + last, digest_size=_DIGEST_BYTES).digest()


class FileSnapshot(NamedTuple):
    """What a file was like at one moment."""

    size: int
    identity: Identity
    modified_s: float


def snapshot_file(disk: Disk, path: bytes) -> FileSnapshot:
    """What that file is like now. One that cannot be read is left to who reads it. Raises FileNotFoundError."""
    try:
        with IdentifiedReader(disk, path) as reader:
            return FileSnapshot(reader.size, Identity(reader.number, reader.sample(reader.size)), reader.modified_s)
    except FileNotFoundError:
        raise
    except OSError:
        state = os.stat(path)
        return FileSnapshot(state.st_size, Identity(state.st_ino, None), state.st_mtime)
