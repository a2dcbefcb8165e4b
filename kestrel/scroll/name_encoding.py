"""Queue names in file names: which journal and which reader a queue is, and how both are spelled.

A journal holds a fanout queue and all its children: the children are readers of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.whole_file import WholeFile
from kestrel.names import parent_of

OWN_READER: Final = b":own"
"""The reader that is the parent itself, where it has children. No name is spelled like that."""

DEFAULT_READER: Final = b""
"""The one reader of a queue that has no children."""

STEM_BYTES: Final = 180
"""A journal's name takes no more of a file name."""

STEM_AND_READER_BYTES: Final = 220
"""A journal's and a reader's name together take no more: so a temporary file of a reader has 243 bytes at most."""

NAMES_FOLDER: Final = PRIVATE_FOLDER + b"/names"
"""Where the true names lie of those that are too long for a file name."""

_HASH_MARK: Final = b"::"
_HASH_BYTES: Final = 16
_MAX_NAME_BYTES: Final = 4096

_ESCAPED_BYTE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_SPELLED: Final = re.compile(rb"(?:[A-Za-z0-9_-]|:[0-9a-f]{2})*")
_HASHED: Final = re.compile(rb"::[0-9a-f]{32}")
_ESCAPE: Final = re.compile(rb":([0-9a-f]{2})")


class QueueLocation(NamedTuple):
    """Where a queue is: the name of its journal, and its own as a child; None if the journal is the queue's own."""

    journal: bytes
    child: bytes | None


def location_of(queue: bytes) -> QueueLocation:
    """Where the queue of that name is: ``work+x`` in the journal of ``work``; ``+x`` and ``x+`` have their own."""
    parent = parent_of(queue)
    if parent is None or len(parent) + 1 == len(queue):
        return QueueLocation(queue, None)
    return QueueLocation(parent, queue[len(parent) + 1 :])


def queue_name_of(place: QueueLocation) -> bytes:
    """The name of the queue that is there."""
    return place.journal if place.child is None else place.journal + b"+" + place.child


def encode_part(name: bytes, most_bytes: int) -> bytes:
    """A name as it stands in a file name: `decode_part` reads it, unless it had to be hashed to fit."""
    part = _ESCAPED_BYTE.sub(lambda byte: b":%02x" % byte[0][0], name)
    return part if len(part) <= most_bytes else _HASH_MARK + _hash(name)


def stem_of(journal: bytes) -> bytes:
    """What the names of all files of that journal begin with, before the first dot."""
    return encode_part(journal, STEM_BYTES)


def reader_part(stem: bytes, child: bytes) -> bytes:
    """What the name of a child's reader file ends with."""
    return encode_part(child, STEM_AND_READER_BYTES - len(stem))


def decode_part(part: bytes) -> bytes | None:
    """The name that is spelled like that; None for a hash and for what `encode_part` does not write."""
    if _SPELLED.fullmatch(part) is None:
        return None
    name = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), part)
    return name if encode_part(name, len(part)) == part else None


def is_hashed(part: bytes) -> bool:
    """Whether `part` is the hash of a name, which a file of its own must hold."""
    return _HASHED.fullmatch(part) is not None


def _hash(name: bytes) -> bytes:
    return blake2b(name, digest_size=_HASH_BYTES).hexdigest().encode()


class NameEncoding(Protocol):
    """How queues and readers are called in file names, and what the files there are are called for. May block."""

    def stem_of(self, journal: bytes) -> bytes:
        """What the names of all files of that journal begin with."""

    def reader_of(self, stem: bytes, child: bytes | None) -> bytes:
        """What a child is called in the writer files; `OWN_READER` for None, the journal's own queue."""

    def remember(self, part: bytes, name: bytes) -> None:
        """Let `name_of` know that name, also after a power failure. Raises OSError."""

    def name_of(self, part: bytes) -> bytes | None:
        """The name that is spelled like that; None if it is unknown. Raises OSError."""

    def is_own(self, part: bytes) -> bool:
        """Whether the reader file of that part is the journal's own queue."""

    def forget(self, part: bytes) -> None:
        """Erase the record of the name of `part`, which no file name contains any more. Raises OSError."""

    def forget_all_but(self, parts: Collection[bytes]) -> None:
        """Erase the records of all names but those of `parts`. Raises OSError."""


class PlainNames:
    """libkestrel's: names stand as they are, and only a reader without a name is the queue's own (`NameEncoding`)."""

    def stem_of(self, journal: bytes) -> bytes:
        """The name."""
        return journal

    def reader_of(self, stem: bytes, child: bytes | None) -> bytes:
        """The name."""
        return OWN_READER if child is None else child

    def remember(self, part: bytes, name: bytes) -> None:
        """The file names say it."""

    def name_of(self, part: bytes) -> bytes | None:
        """The name."""
        return part

    def is_own(self, part: bytes) -> bool:
        """Whether it has no name."""
        return part == DEFAULT_READER

    def forget(self, part: bytes) -> None:
        """Do nothing: no name is recorded."""

    def forget_all_but(self, parts: Collection[bytes]) -> None:
        """Do nothing: no name is recorded."""


class EscapedNames:
    """The server's: names are spelled, those among them that are too long are hashed (`NameEncoding`). Blocks."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self._disk = disk
        self._folder = folder

    def stem_of(self, journal: bytes) -> bytes:
        """The name, spelled."""
        return stem_of(journal)

    def reader_of(self, stem: bytes, child: bytes | None) -> bytes:
        """The name, spelled."""
        return OWN_READER if child is None else reader_part(stem, child)

    def is_own(self, part: bytes) -> bool:
        """Whether it has no name, or the one that no child has."""
        return part in (DEFAULT_READER, OWN_READER)

    def remember(self, part: bytes, name: bytes) -> None:
        """Let `name_of` know that name, also after a power failure. Raises OSError."""
        if not part.startswith(_HASH_MARK) or self.name_of(part) == name:
            return
        names = self._folder + b"/" + NAMES_FOLDER
        self._disk.make_folder(names)
        self._disk.sync_folder(self._folder)
        self._disk.sync_folder(self._folder + b"/" + PRIVATE_FOLDER)
        self._file(part).write(name)

    def name_of(self, part: bytes) -> bytes | None:
        """The name that is spelled like that; None if it is unknown. Raises OSError."""
        if _HASHED.fullmatch(part) is None:
            return decode_part(part)
        try:
            name = self._file(part).read(_MAX_NAME_BYTES)
        except FileNotFoundError:
            return None
        return name if _HASH_MARK + _hash(name) == part else None

    def forget(self, part: bytes) -> None:
        """Erase the file that holds the name of `part`. Raises OSError."""
        if is_hashed(part):
            self._disk.erase(self._path(part))

    def forget_all_but(self, parts: Collection[bytes]) -> None:
        """Erase the files of all names but those of `parts`, and unfinished ones. Raises OSError."""
        kept = {part.removeprefix(_HASH_MARK) for part in parts}
        names = self._folder + b"/" + NAMES_FOLDER
        if self._disk.is_there(names):
            for file_name in self._disk.list_files(names):
                if file_name not in kept:
                    self._disk.erase(names + b"/" + file_name)

    def _path(self, part: bytes) -> bytes:
        return b"%b/%b/%b" % (self._folder, NAMES_FOLDER, part.removeprefix(_HASH_MARK))

    def _file(self, part: bytes) -> WholeFile:
        return WholeFile(self._disk, self._path(part))
