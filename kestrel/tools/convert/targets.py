"""The files of a new folder: what they hold follows from the items alone, so that who was interrupted can go on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.journal import fileset as journals
from kestrel.journal import records as journal_records
from kestrel.journal.records import encode_item, encode_open, encode_put_back
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.fileset import reader_name, writer_name
from kestrel.scroll.name_encoding import DEFAULT_READER, OWN_READER, EscapedNames, location_of, reader_part, stem_of
from kestrel.scroll.reader_file import ReaderState, encode_changes, encode_state, sealed
from kestrel.scroll.records import MAX_DATA_BYTES, WRITER_MAGIC, Targets, encode_errors, encode_put, encode_targets
from kestrel.storage.folder_kind import claim_folder
from kestrel.tools.convert.families import Family, FamilyItem, FolderSums, QueueSum
from kestrel.tools.convert.resumable_files import ResumableFile, ResumableFiles

_MOST_ERRORS: Final = 4096
"""So many error counts of a queue of a scroll wait to be written."""


class ConversionTarget(ABC):
    """A folder of one kind that is being written. `number` is that of its first file that has one."""

    kind: str
    """As its storage is called."""

    max_data_bytes: int
    """An item has no more."""

    files_per_queue: int
    """Of a small queue."""

    def __init__(self, disk: Disk, path: bytes, number: int) -> None:
        self._disk = disk
        self._path = path
        self._number = number

    def make(self) -> None:
        """Make the folder as a server makes one, unless it is there. Raises OSError."""
        for path in (self._path, self._path + b"/" + PRIVATE_FOLDER):
            self._disk.make_folder(path)
        claim_folder(self._disk, self._path, self.kind)

    def sync(self) -> None:
        """Return when the names of all files are on the medium. Raises OSError."""
        self._disk.sync_folder(self._path + b"/" + PRIVATE_FOLDER)
        self._disk.sync_folder(self._path)

    @staticmethod
    def accepts_name(queue: bytes) -> bool:
        """Whether there can be a queue of that name."""
        return True

    @staticmethod
    @abstractmethod
    def needed_bytes(sums: FolderSums) -> int:
        """About how long the files of a folder are that holds that."""

    @abstractmethod
    def write(self, family: Family, sums: Mapping[bytes, QueueSum], steps: Iterable[FamilyItem]) -> None:
        """Write a family, which holds what `sums` says, to its files, and sync them. Raises OSError."""


class JournalTarget(ConversionTarget):
    """Kestrel's journals: each queue is one file, as a rewrite makes it."""

    kind = "journal"
    max_data_bytes = journal_records.MAX_DATA_BYTES
    files_per_queue = 1

    @staticmethod
    def accepts_name(queue: bytes) -> bool:
        """Its file is called like it."""
        file_name = journals.current_name(queue)
        file = journals.parse_file_name(file_name)
        return file is not None and file.queue == queue and len(file_name) <= journals.MAX_FILE_NAME_BYTES

    @staticmethod
    def needed_bytes(sums: FolderSums) -> int:
        """As a folder of journals."""
        return sums.journal_bytes

    def write(self, family: Family, sums: Mapping[bytes, QueueSum], steps: Iterable[FamilyItem]) -> None:
        """All files of the family side by side."""
        files = ResumableFiles(self._disk, self._path)
        queues = [RewrittenFile(files.file(journals.current_name(name)), sums[name].front) for name in family.queues]
        for step in steps:
            record = encode_item(step.data, step.add_ms, step.expiry_ms)
            for place, errors in zip(step.queue_indexes, step.errors, strict=True):
                queues[place].put(record, errors)
        files.finish()


class RewrittenFile:
    """The one file of a queue, as a rewrite makes it. Only an item that goes back has errors: the first `front` do, the
    last of which is the last that has some."""

    def __init__(self, file: ResumableFile, front: int) -> None:
        self._file = file
        self._front = front
        self._errors: list[int] = []

    def put(self, record: bytes, errors: int) -> None:
        """One item more."""
        self._file.append(record)
        if len(self._errors) < self._front:
            self._errors.append(errors)
            self._file.append(encode_open(len(self._errors)))
            if len(self._errors) == self._front:
                for xid in range(self._front, 0, -1):
                    self._file.append(encode_put_back(xid, self._errors[xid - 1]))


class ScrollTarget(ConversionTarget):
    """Scrolls: a parent and its children read the same items."""

    kind = "scroll"
    max_data_bytes = MAX_DATA_BYTES
    files_per_queue = 2

    @staticmethod
    def needed_bytes(sums: FolderSums) -> int:
        """As a folder of scrolls."""
        return sums.scroll_bytes

    def write(self, family: Family, sums: Mapping[bytes, QueueSum], steps: Iterable[FamilyItem]) -> None:
        """The writer files one after the other, the reader files beside them."""
        names = EscapedNames(self._disk, self._path)
        stem = stem_of(family.name)
        names.remember(stem, family.name)
        files = ResumableFiles(self._disk, self._path)
        readers = []
        for name in family.queues:
            child = location_of(name).child
            reader = OWN_READER if child is None else reader_part(stem, child)
            if child is not None:
                names.remember(reader, child)
            part = DEFAULT_READER if family.queues == (family.name,) else reader
            readers.append(_ReaderFile(reader, files.file(reader_name(stem, part)), sums[name].items))
        writers = _WriterFiles(files, stem, self._number)
        among = _TargetsEncoder(readers)
        item_id = 0
        for item_id, step in enumerate(steps, 1):
            targets = among.targets_of(step.queue_indexes)
            errors = step.errors[0]
            for place, others in zip(step.queue_indexes, step.errors, strict=True):
                readers[place].take(item_id, others if others != errors else None)
            writers.append(targets + encode_put(item_id, step.data, step.add_ms, step.expiry_ms, errors))
        for each in readers:
            each.end(item_id)
        files.finish()


class _WriterFiles:
    """The writer files of a scroll, which are as large as a server makes them by default."""

    def __init__(self, files: ResumableFiles, stem: bytes, number: int) -> None:
        self._files = files
        self._stem = stem
        self._numbers = count(number)
        self._file: ResumableFile | None = None
        self._most_bytes = QueueSettings().default_journal_size_bytes

    def append(self, records: bytes) -> None:
        """An item, and before it for whom it is."""
        if self._file is None or self._file.size + len(records) > self._most_bytes:
            if self._file is not None:
                self._file.finish()
            self._file = self._files.file(writer_name(self._stem, next(self._numbers)))
            self._file.append(WRITER_MAGIC)
        self._file.append(records)


class _ReaderFile:
    """The reader file of one queue. What lies before its first item and behind its last one is done in it."""

    def __init__(self, reader: bytes, file: ResumableFile, items: int) -> None:
        self.reader = reader
        self.left = items
        self._file = file
        self._last_id = 0
        self._errors: dict[int, int] = {}

    def take(self, item_id: int, errors: int | None) -> None:
        """That item is for it; with so many errors, or with those that its PUT says."""
        if not self._last_id:
            self._file.append(encode_state(ReaderState(DoneSet(item_id - 1))))
        self._last_id = item_id
        self.left -= 1
        if errors is not None:
            self._errors[item_id] = errors
            if len(self._errors) == _MOST_ERRORS:
                self._write_errors()

    def end(self, last_id: int) -> None:
        """That was the last item of all."""
        self._write_errors()
        if not self._last_id:
            self._file.append(encode_state(ReaderState(DoneSet(last_id))))
        elif self._last_id < last_id:
            self._file.append(sealed(encode_changes(None, [(self._last_id + 1, last_id)], {})))

    def _write_errors(self) -> None:
        if self._errors:
            self._file.append(sealed(encode_errors(self._errors)))
            self._errors.clear()


class _TargetsEncoder:
    """For whom an item is, among the queues that are between their first item and their last one.

    Of the others the reader files say that it is not for them, which takes nothing in the writer files.
    """

    def __init__(self, readers: Sequence[_ReaderFile]) -> None:
        self._readers = readers
        self._active: set[int] = set()

    def targets_of(self, queue_indexes: Sequence[int]) -> bytes:
        """The record before an item for those; nothing when they are all."""
        readers, active = self._readers, self._active
        active.update(queue_indexes)
        targets = b""
        if len(active) > len(queue_indexes):
            others = active.difference(queue_indexes)
            are_left_out = len(others) < len(queue_indexes)
            named = others if are_left_out else queue_indexes
            targets = encode_targets(Targets(frozenset(readers[place].reader for place in named), are_left_out))
        active.difference_update([place for place in queue_indexes if readers[place].left == 1])
        return targets


TARGETS: Final = {target.kind: target for target in (JournalTarget, ScrollTarget)}
"""By the name of the storage."""
