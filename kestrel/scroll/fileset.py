"""The names of scroll files, which define their journals and their roles.

The journal ``work`` has these files:

- ``work.<ms>`` is a writer file. Writer files are read in the order of their numbers.
- ``work.read.<reader>`` is a reader file.
- ``work.<ms>~~<ms>`` and ``work.read.<reader>~~<ms>`` are temporary files, which are erased at start.

Other files in the folder are foreign and are not touched.

Paths are bytes. `kestrel.scroll.name_encoding` encodes the names of queues and readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

_NAME: Final = re.compile(rb"([A-Za-z0-9:_-]+)\.(?:(\d{1,15})|read\.([A-Za-z0-9:_-]*))(?:~~(\d{1,15}))?")


class ScrollFileKind(Enum):
    """The role of a scroll file."""

    WRITER = "writer"
    READER = "reader"
    TEMPORARY = "temporary"


class ScrollFile(NamedTuple):
    """A parsed file name.

    `number` is the number of a writer or temporary file, and 0 for a reader file. `part` is the encoded name of the
    reader, empty for a writer file.
    """

    stem: bytes
    kind: ScrollFileKind
    number: int
    part: bytes
    file_name: bytes


def writer_name(stem: bytes, number: int) -> bytes:
    """Return the name of a writer file."""
    return b"%b.%d" % (stem, number)


def reader_name(stem: bytes, part: bytes) -> bytes:
    """Return the name of a reader file."""
    return b"%b.read.%b" % (stem, part)


def temporary_name(file_name: bytes, number: int) -> bytes:
    """Return the name of a temporary file, which is renamed to `file_name` when it is complete."""
    return b"%b~~%d" % (file_name, number)


def archived_name(file_name: bytes) -> bytes:
    """Return the name of a writer file in the folder of files that are no longer needed."""
    return b"archive~" + file_name


def parse_file_name(file_name: bytes) -> ScrollFile | None:
    """Return the parsed name of a scroll file, or None for a foreign file."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    stem, number, part, temporary_number = match.groups()
    if temporary_number is not None:
        return ScrollFile(stem, ScrollFileKind.TEMPORARY, int(temporary_number), part or b"", file_name)
    if number is not None:
        return ScrollFile(stem, ScrollFileKind.WRITER, int(number), b"", file_name)
    return ScrollFile(stem, ScrollFileKind.READER, 0, part, file_name)


class ScrollFiles:
    """The files of one journal in a folder listing."""

    def __init__(self, stem: bytes) -> None:
        self.stem = stem
        self.writers: list[ScrollFile] = []
        """Writer files, sorted by number, and of equal numbers by name."""
        self.readers: dict[bytes, bytes] = {}
        """Names of the reader files, by the encoded names of the readers."""
        self.temporary: list[ScrollFile] = []

    def add(self, file: ScrollFile) -> None:
        """Add a file of the listing. Call `sort` after the last one."""
        if file.kind is ScrollFileKind.READER:
            self.readers[file.part] = file.file_name
        else:
            (self.writers if file.kind is ScrollFileKind.WRITER else self.temporary).append(file)

    def sort(self) -> None:
        """Sort the writer files by number, then by file name."""
        self.writers.sort(key=lambda file: (file.number, file.file_name))

    def numbers(self) -> list[int]:
        """Return the numbers of the writer files."""
        return [file.number for file in self.writers]


def group_by_stem(file_names: Iterable[bytes]) -> dict[bytes, ScrollFiles]:
    """Return the scroll files of a folder listing, by stem. Foreign files are omitted."""
    journals: dict[bytes, ScrollFiles] = {}
    for file_name in file_names:
        file = parse_file_name(file_name)
        if file is not None:
            journals.setdefault(file.stem, ScrollFiles(file.stem)).add(file)
    for files in journals.values():
        files.sort()
    return journals
