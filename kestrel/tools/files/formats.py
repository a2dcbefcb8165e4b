"""Which files of a folder are Kestrel's journals and which are scrolls: their names say it, or their first bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Final

from kestrel.disk.files import Disk
from kestrel.journal import fileset as journals
from kestrel.journal.opcodes import Opcode
from kestrel.scroll import fileset as scrolls
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC

_MAGIC_BYTES: Final = 4
_OPCODES: Final = frozenset(map(int, Opcode))


class Format(Enum):
    """What a file's first bytes say that it is."""

    JOURNAL = "a journal file of Kestrel"
    WRITER = "a writer file of a scroll"
    READER = "a reader file of a scroll"
    NEITHER = "neither"


def format_of(disk: Disk, path: bytes) -> Format:
    """What that file is; an empty one is a journal file. Raises OSError."""
    begins_with = _first_bytes(disk, path)
    if begins_with == WRITER_MAGIC:
        return Format.WRITER
    if begins_with == READER_MAGIC:
        return Format.READER
    return Format.JOURNAL if not begins_with or begins_with[0] in _OPCODES else Format.NEITHER


def _first_bytes(disk: Disk, path: bytes) -> bytes:
    descriptor = disk.open_read(path)
    try:
        return disk.read(descriptor, 0, _MAGIC_BYTES)
    finally:
        disk.close(descriptor)


class _Names:
    """The names in a folder that may be those of one journal or scroll."""

    def __init__(self) -> None:
        self.of_a_journal: list[bytes] = []
        self.of_a_scroll: list[bytes] = []
        self.of_either: list[bytes] = []
        """``work.<ms>``."""

    @property
    def is_journal(self) -> bool:
        """Whether a current file or a pack is among them."""
        files = map(journals.parse_file_name, self.of_a_journal)
        return any(file is not None and file.kind is not journals.JournalFileKind.TEMPORARY for file in files)

    @property
    def is_scroll(self) -> bool:
        """Whether a reader file is among them."""
        return any(b".read." in name for name in self.of_a_scroll)


class Sorter:
    """Tells the files of one folder apart. What it has looked into it does not look into again."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self._disk = disk
        self._folder = folder
        self._is_writer: dict[bytes, bool] = {}

    def sort(self, file_names: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The names that are journal files of Kestrel, or foreign, and those that are files of scrolls.

        The name ``work.<ms>`` may be either's. It is Kestrel's beside a file ``work``, and a scroll's beside a file
        ``work.read.<reader>``. Beside both of them, and beside neither, its first bytes say whose it is.
        """
        groups: defaultdict[bytes, _Names] = defaultdict(_Names)
        for name in file_names:
            names = groups[name.partition(b".")[0].partition(b"~")[0]]
            if scrolls.parse_file_name(name) is None:
                names.of_a_journal.append(name)
            elif journals.parse_file_name(name) is None:
                names.of_a_scroll.append(name)
            else:
                names.of_either.append(name)
        of_journals: list[bytes] = []
        of_scrolls: list[bytes] = []
        for names in groups.values():
            of_journals += names.of_a_journal
            of_scrolls += names.of_a_scroll
            is_journal, is_scroll = names.is_journal, names.is_scroll
            for name in names.of_either:
                is_writer = is_scroll if is_scroll is not is_journal else self._begins_as_a_writer(name)
                (of_scrolls if is_writer else of_journals).append(name)
        return of_journals, of_scrolls

    def _begins_as_a_writer(self, name: bytes) -> bool:
        is_writer = self._is_writer.get(name)
        if is_writer is None:
            try:
                begins_with = _first_bytes(self._disk, self._folder + b"/" + name)
            except OSError:  # it is not there any more, or who opens it will be told
                return False
            is_writer = begins_with == WRITER_MAGIC
            if is_writer or not WRITER_MAGIC.startswith(begins_with):
                self._is_writer[name] = is_writer
        return is_writer
