"""The encoding of queue names in file names.

A journal has a fanout queue and all its children. The children are readers of the journal.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from kestrel.disk.files import AtomicFile, Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.names import parent_of

OWN_READER: Final = b":own"
"""The reader for the parent queue if it has children. No encoded name is equal to it."""

DEFAULT_READER: Final = b""
"""The only reader of a queue without children."""

STEM_BYTES: Final = 180
"""Limit of an encoded journal name."""

STEM_AND_READER_BYTES: Final = 220
"""Limit of an encoded journal name and reader name together. A reader's temporary file then has 243 bytes at most."""

NAMES_FOLDER: Final = PRIVATE_FOLDER + b"/names"
"""Folder of the names that are too long for a file name, one file for each name."""

_HASH_MARK: Final = b"::"
_HASH_BYTES: Final = 16
_MAX_NAME_BYTES: Final = 4096

_ESCAPED_BYTE: Final = re.compile(rb"[^A-Za-z0-9_-]")
_SPELLED: Final = re.compile(rb"(?:[A-Za-z0-9_-]|:[0-9a-f]{2})*")
_HASHED: Final = re.compile(rb"::[0-9a-f]{32}")
_ESCAPE: Final = re.compile(rb":([0-9a-f]{2})")


class QueueLocation(NamedTuple):
    """The location of a queue: the name of its journal, and its name as a child, or None if it is not a child."""

    journal: bytes
    child: bytes | None


def location_of(queue: bytes) -> QueueLocation:
    """Return the location of a queue. ``work+x`` is in the journal of ``work``; ``+x`` and ``x+`` have their own."""
    parent = parent_of(queue)
    if parent is None or len(parent) + 1 == len(queue):
        return QueueLocation(queue, None)
    return QueueLocation(parent, queue[len(parent) + 1 :])


def queue_name_of(location: QueueLocation) -> bytes:
    """Return the name of the queue at a location."""
    return location.journal if location.child is None else location.journal + b"+" + location.child


def encode_part(name: bytes, most_bytes: int) -> bytes:
    """Return a name encoded for a file name, or its hash if the encoded name is longer than `most_bytes`."""
    part = _ESCAPED_BYTE.sub(lambda byte: b":%02x" % byte[0][0], name)
    return part if len(part) <= most_bytes else _HASH_MARK + _hash(name)


def stem_of(journal: bytes) -> bytes:
    """Return the part before the first dot of the names of a journal's files."""
    return encode_part(journal, STEM_BYTES)


def reader_part(stem: bytes, child: bytes) -> bytes:
    """Return the end of the name of a child's reader file."""
    return encode_part(child, STEM_AND_READER_BYTES - len(stem))


def decode_part(part: bytes) -> bytes | None:
    """Return the name that `encode_part` has encoded, or None for a hash or an invalid encoding."""
    if _SPELLED.fullmatch(part) is None:
        return None
    name = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), part)
    return name if encode_part(name, len(part)) == part else None


def is_hashed(part: bytes) -> bool:
    """Return whether `part` is the hash of a name, which must be stored in a file of its own."""
    return _HASHED.fullmatch(part) is not None


def _hash(name: bytes) -> bytes:
    return blake2b(name, digest_size=_HASH_BYTES).hexdigest().encode()


class NameEncoding(Protocol):
    """An encoding of the names of queues and readers in file names. Its methods may block."""

    def stem_of(self, journal: bytes) -> bytes:
        """Return the part before the first dot of the names of a journal's files."""

    def reader_of(self, stem: bytes, child: bytes | None) -> bytes:
        """Return the name of a child in the writer files, or `OWN_READER` if `child` is None."""

    def remember(self, part: bytes, name: bytes) -> None:
        """Store durably that `part` is the encoding of `name`, if `name_of` needs that. Raise OSError."""

    def name_of(self, part: bytes) -> bytes | None:
        """Return the name that `part` is the encoding of, or None if it is unknown. Raise OSError."""

    def is_own(self, part: bytes) -> bool:
        """Return whether the reader file with this part belongs to the journal's own queue."""

    def forget(self, part: bytes) -> None:
        """Erase the stored name of `part`, which no file name contains any longer. Raise OSError."""

    def forget_all_but(self, parts: Collection[bytes]) -> None:
        """Erase all stored names except those of `parts`. Raise OSError."""


class PlainNames:
    """The name encoding of libkestrel (`NameEncoding`).

    Names are not changed. A reader file without a name belongs to the journal's own queue.
    """

    def stem_of(self, journal: bytes) -> bytes:
        """Return `journal`."""
        return journal

    def reader_of(self, stem: bytes, child: bytes | None) -> bytes:
        """Return `child`, or `OWN_READER` if it is None."""
        return OWN_READER if child is None else child

    def remember(self, part: bytes, name: bytes) -> None:
        """Do nothing, because the file names contain the names."""

    def name_of(self, part: bytes) -> bytes | None:
        """Return `part`."""
        return part

    def is_own(self, part: bytes) -> bool:
        """Return whether `part` is empty."""
        return part == DEFAULT_READER

    def forget(self, part: bytes) -> None:
        """Do nothing, because no name is stored."""

    def forget_all_but(self, parts: Collection[bytes]) -> None:
        """Do nothing, because no name is stored."""


class EscapedNames:
    """The name encoding of the server (`NameEncoding`). Special bytes are escaped, and long names are hashed.

    The names of hashes are stored in files, so its methods block.
    """

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self._disk = disk
        self._folder = folder

    def stem_of(self, journal: bytes) -> bytes:
        """Return the encoded name of a journal."""
        return stem_of(journal)

    def reader_of(self, stem: bytes, child: bytes | None) -> bytes:
        """Return the encoded name of a child, or `OWN_READER` if `child` is None."""
        return OWN_READER if child is None else reader_part(stem, child)

    def is_own(self, part: bytes) -> bool:
        """Return whether `part` is empty or `OWN_READER`."""
        return part in (DEFAULT_READER, OWN_READER)

    def remember(self, part: bytes, name: bytes) -> None:
        """Store durably the name of a hashed `part`. Raise OSError."""
        if not part.startswith(_HASH_MARK) or self.name_of(part) == name:
            return
        names = self._folder + b"/" + NAMES_FOLDER
        self._disk.make_folder(names)
        self._disk.sync_folder(self._folder)
        self._disk.sync_folder(self._folder + b"/" + PRIVATE_FOLDER)
        self._file(part).write(name)

    def name_of(self, part: bytes) -> bytes | None:
        """Return the name that `part` is the encoding or hash of, or None if it is unknown. Raise OSError."""
        if _HASHED.fullmatch(part) is None:
            return decode_part(part)
        try:
            name = self._file(part).read(_MAX_NAME_BYTES)
        except FileNotFoundError:
            return None
        return name if _HASH_MARK + _hash(name) == part else None

    def forget(self, part: bytes) -> None:
        """Erase the file that stores the original name of a hashed `part`. Do nothing for any other part. Raises
        OSError.
        """
        if is_hashed(part):
            self._disk.erase(self._path(part))

    def forget_all_but(self, parts: Collection[bytes]) -> None:
        """Erase the files of all names except those of `parts`, and unfinished files. Raise OSError."""
        kept = {part.removeprefix(_HASH_MARK) for part in parts}
        names = self._folder + b"/" + NAMES_FOLDER
        if self._disk.is_there(names):
            for file_name in self._disk.list_files(names):
                if file_name not in kept:
                    self._disk.erase(names + b"/" + file_name)

    def _path(self, part: bytes) -> bytes:
        return b"%b/%b/%b" % (self._folder, NAMES_FOLDER, part.removeprefix(_HASH_MARK))

    def _file(self, part: bytes) -> AtomicFile:
        return AtomicFile(self._disk, self._path(part))
