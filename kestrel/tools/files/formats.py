"""Telling journal files, files of scrolls and other files of a folder apart, by their names or first bytes."""

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
from kestrel.tools.formatting import count, show_path

_MAGIC_BYTES: Final = 4
_OPCODES: Final = frozenset(map(int, Opcode))


class Format(Enum):
    """Format of a file, as its first bytes show."""

    JOURNAL = "a journal file of Kestrel"
    WRITER = "a writer file of a scroll"
    READER = "a reader file of a scroll"
    NEITHER = "neither"


def format_of(disk: Disk, path: bytes) -> Format:
    """Return the format of a file. An empty file is a journal file. Raise OSError."""
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
    """File names of a folder that may belong to the same journal or scroll."""

    def __init__(self) -> None:
        self.of_a_journal: list[bytes] = []
        self.of_a_scroll: list[bytes] = []
        self.of_either: list[bytes] = []
        """Names such as ``work.<ms>``, which both formats use."""

    @property
    def is_journal(self) -> bool:
        """True if a current file or a pack is among the names."""
        files = map(journals.parse_file_name, self.of_a_journal)
        return any(file is not None and file.kind is not journals.JournalFileKind.TEMPORARY for file in files)

    @property
    def is_scroll(self) -> bool:
        """True if a reader file is among the names."""
        return any(b".read." in name for name in self.of_a_scroll)


class Sorter:
    """A classifier of the files of one folder. It reads the first bytes of a file only once."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self._disk = disk
        self._folder = folder
        self._is_writer: dict[bytes, bool] = {}

    def sort(self, file_names: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return the names of Kestrel's journal files and foreign files, and those of the files of scrolls.

        The name ``work.<ms>`` can be of either format. It is Kestrel's if there is a file ``work``, and a scroll's if
        there is a file ``work.read.<reader>``. If both or neither exist, its first bytes decide.
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
            except OSError:  # it no longer exists, or opening it later will report the error
                return False
            is_writer = begins_with == WRITER_MAGIC
            if is_writer or not WRITER_MAGIC.startswith(begins_with):
                self._is_writer[name] = is_writer
        return is_writer


class Strays:
    """The files of a folder whose names belong to no queue."""

    def __init__(self, disk: Disk, folder: bytes, file_names: Iterable[bytes]) -> None:
        self._disk = disk
        self._folder = folder
        self._file_names = sorted(name for name in file_names if _is_foreign(name))

    def unread(self) -> list[str]:
        """Return a sentence for each reader file that no server reads because of its name."""
        return [
            f"{show_path(name)} is a reader file, but no queue has that name, so no server reads it: rename it"
            for name in self._file_names
            if b".read." in name and b"~" not in name and self._is_reader(name)
        ]

    def _is_reader(self, name: bytes) -> bool:
        try:
            return format_of(self._disk, self._folder + b"/" + name) is Format.READER
        except OSError:  # the file belongs to no queue: a read error does not matter
            return False

    def archived(self) -> str | None:
        """Return a sentence for a folder without queues that has archived writer files, or None without them."""
        prefix = scrolls.archived_name(b"")
        number = sum(
            name.startswith(prefix) and scrolls.parse_file_name(name.removeprefix(prefix)) is not None
            for name in self._file_names
        )
        return f"no queues; {count(number, 'archived file')}: use --this-file of kestrel-qdump" if number else None


def _is_foreign(name: bytes) -> bool:
    return journals.parse_file_name(name) is None and scrolls.parse_file_name(name) is None
