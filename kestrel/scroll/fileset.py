"""The names of scroll files: which file belongs to which journal, and what it is to it.

The journal ``work`` has ``work.<ms>`` (writer files, in number order), ``work.read.<reader>`` (reader files) and
``<either>~~<ms>`` (temporary, erased at start). Everything else in the folder is foreign and left alone.

Paths are bytes. What stands for a queue's and a reader's name is spelled as `kestrel.scroll.name_encoding` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

_NAME: Final = re.compile(rb"([A-Za-z0-9:_-]+)\.(?:(\d{1,15})|read\.([A-Za-z0-9:_-]*))(?:~~(\d{1,15}))?")


class ScrollFileKind(Enum):
    """What a scroll file is to its journal."""

    WRITER = "writer"
    READER = "reader"
    TEMPORARY = "temporary"


class ScrollFile(NamedTuple):
    """One file's name, understood.

    `number` is that of a writer file or a temporary one, and 0 for a reader file; `part` is the reader's name in it,
    empty for a writer file.
    """

    stem: bytes
    kind: ScrollFileKind
    number: int
    part: bytes
    file_name: bytes


def writer_name(stem: bytes, number: int) -> bytes:
    """The file name of a writer file."""
    return b"%b.%d" % (stem, number)


def reader_name(stem: bytes, part: bytes) -> bytes:
    """The file name of a reader file."""
    return b"%b.read.%b" % (stem, part)


def temporary_name(file_name: bytes, number: int) -> bytes:
    """The file name of a file that is being written and will get that name when it is whole."""
    return b"%b~~%d" % (file_name, number)


def archived_name(file_name: bytes) -> bytes:
    """What a writer file is called in the folder of those that nobody needs any more."""
    return b"archive~" + file_name


def parse_file_name(file_name: bytes) -> ScrollFile | None:
    """Which journal's file that is, or None for a foreign one."""
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
    """All files of one journal in a folder listing."""

    def __init__(self, stem: bytes) -> None:
        self.stem = stem
        self.writers: list[ScrollFile] = []
        """In number order; of two spellings of one number, that with more zeros first."""
        self.readers: dict[bytes, bytes] = {}
        """The names of the reader files, by the reader's part of it."""
        self.temporary: list[ScrollFile] = []

    def add(self, file: ScrollFile) -> None:
        """Take one more file of the listing in; `sort` when all are there."""
        if file.kind is ScrollFileKind.READER:
            self.readers[file.part] = file.file_name
        else:
            (self.writers if file.kind is ScrollFileKind.WRITER else self.temporary).append(file)

    def sort(self) -> None:
        """Put the writer files in order."""
        self.writers.sort(key=lambda file: (file.number, file.file_name))

    def numbers(self) -> list[int]:
        """Those of its writer files."""
        return [file.number for file in self.writers]


def group_by_stem(file_names: Iterable[bytes]) -> dict[bytes, ScrollFiles]:
    """The scroll files of a folder listing, by stem; foreign files are left out."""
    journals: dict[bytes, ScrollFiles] = {}
    for file_name in file_names:
        file = parse_file_name(file_name)
        if file is not None:
            journals.setdefault(file.stem, ScrollFiles(file.stem)).add(file)
    for files in journals.values():
        files.sort()
    return journals
