"""Telling journal files, files of scrolls and other files of a folder apart, by their names or first bytes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from kestrel.disk.files import Disk, first_bytes
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
    begins_with = first_bytes(disk, path, _MAGIC_BYTES)
    if begins_with == WRITER_MAGIC:
        return Format.WRITER
    if begins_with == READER_MAGIC:
        return Format.READER
    return Format.JOURNAL if not begins_with or begins_with[0] in _OPCODES else Format.NEITHER


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
        of_journals: list[bytes] = []
        of_scrolls: list[bytes] = []
        of_either: list[tuple[bytes, bytes]] = []
        journal_stems: set[bytes] = set()
        scroll_stems: set[bytes] = set()
        for name in file_names:
            stem = name.partition(b".")[0].partition(b"~")[0]
            file = journals.parse_file_name(name)
            if scrolls.parse_file_name(name) is None:
                of_journals.append(name)
                if file is not None and file.kind is not journals.JournalFileKind.TEMPORARY:
                    journal_stems.add(stem)
            elif file is None:
                of_scrolls.append(name)
                if b".read." in name:
                    scroll_stems.add(stem)
            else:
                of_either.append((stem, name))
        for stem, name in of_either:
            is_scroll = stem in scroll_stems
            is_writer = is_scroll if is_scroll is not (stem in journal_stems) else self._begins_as_a_writer(name)
            (of_scrolls if is_writer else of_journals).append(name)
        return of_journals, of_scrolls

    def _begins_as_a_writer(self, name: bytes) -> bool:
        is_writer = self._is_writer.get(name)
        if is_writer is None:
            try:
                begins_with = first_bytes(self._disk, self._folder + b"/" + name, _MAGIC_BYTES)
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
