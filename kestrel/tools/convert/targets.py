"""Writing the files of a new folder. Their contents depend only on the items, so an interrupted run can resume."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from kestrel.config.model import QueueSettings
from kestrel.disk.files import Disk, appending
from kestrel.disk.folders import PRIVATE_FOLDER
from kestrel.disk.reader import PART_BYTES
from kestrel.journal import fileset as journals
from kestrel.journal import records as journal_records
from kestrel.journal.records import encode_item, encode_open, encode_put_back
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.fileset import reader_name, writer_name
from kestrel.scroll.name_encoding import DEFAULT_READER, OWN_READER, EscapedNames, location_of, reader_part, stem_of
from kestrel.scroll.reader_file import ReaderState, encode_changes, encode_state, sealed
from kestrel.scroll.records import MAX_DATA_BYTES, WRITER_MAGIC, Targets, encode_errors, encode_put, encode_targets
from kestrel.storage.folder_resources import claim_folder
from kestrel.tools.convert.sources import Family, FamilyItem, QueueSum

_MOST_PENDING_BYTES: Final = 8 * 1024 * 1024


class ResumableFiles:
    """The files of one folder that are being written. Their unwritten bytes have a common bound."""

    def __init__(self, disk: Disk, folder: bytes) -> None:
        self.disk = disk
        self.folder = folder
        self._files: list[ResumableFile] = []
        self._pending_bytes = 0

    def file(self, file_name: bytes) -> ResumableFile:
        """Return a file to be written from its beginning."""
        file = ResumableFile(self, self.folder + b"/" + file_name)
        self._files.append(file)
        return file

    def add_pending_bytes(self, size: int) -> None:
        """Count `size` more unwritten bytes, and flush all files if there are too many. Raise OSError."""
        self._pending_bytes += size
        if self._pending_bytes > _MOST_PENDING_BYTES:
            for file in self._files:
                file.flush()
            self._pending_bytes = 0

    def finished(self, file: ResumableFile) -> None:
        self._files.remove(file)

    def finish(self) -> None:
        """Finish all files: write the rest, cut anything after it, and fsync. Raise OSError."""
        for file in self._files[:]:
            file.finish()


class ResumableFile:
    """A file being written. Appended data is compared with the existing file, and only missing bytes are written.

    So the file becomes correct wherever an earlier run ended, and whatever a power failure left of it. Methods raise
    OSError.
    """

    def __init__(self, files: ResumableFiles, path: bytes) -> None:
        self._files = files
        self._disk = files.disk
        self._path = path
        self.size = 0
        """Number of bytes appended."""
        self._offset = 0
        """Number of appended bytes that are in the file."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def append(self, data: bytes) -> None:
        """Append bytes. They may be written later."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        self.size += len(data)
        if self._pending_bytes >= PART_BYTES:
            self.flush()
        else:
            self._files.add_pending_bytes(len(data))

    def flush(self) -> None:
        """Write all appended bytes to the file."""
        if self._pending:
            with appending(self._disk, self._path) as descriptor:
                self._write(descriptor)

    def finish(self) -> None:
        """Write all appended bytes, cut anything after them, and fsync."""
        with appending(self._disk, self._path) as descriptor:
            self._write(descriptor)
            if self._disk.size(descriptor) > self._offset:
                self._disk.cut(descriptor, self._offset)
            self._disk.sync(descriptor)
        self._files.finished(self)

    def _write(self, descriptor: int) -> None:
        data = b"".join(self._pending)
        there = min(len(data), self._disk.size(descriptor) - self._offset)
        if there and self._disk.read(descriptor, self._offset, there) != data[:there]:
            self._disk.cut(descriptor, self._offset)
            there = 0
        if there < len(data):
            self._disk.write(descriptor, data[there:])
        self._offset += len(data)
        self._pending.clear()
        self._pending_bytes = 0


_MOST_ERRORS: Final = 4096
"""Maximum number of error counts in one record of a reader file."""


class ConversionTarget(ABC):
    """A folder of one kind that is being written. `number` is the number of its first numbered file."""

    kind: str
    """Name of the folder's storage."""

    max_data_bytes: int
    """Largest size of an item's data."""

    files_per_queue: int
    """Number of files of a small queue."""

    def __init__(self, disk: Disk, path: bytes, number: int) -> None:
        self._disk = disk
        self._path = path
        self._number = number

    def make(self) -> None:
        """Create the folder as a server does, unless it exists. Raise OSError."""
        for path in (self._path, self._path + b"/" + PRIVATE_FOLDER):
            self._disk.make_folder(path)
        claim_folder(self._disk, self._path, self.kind)

    def sync(self) -> None:
        """Fsync the folder, so that the names of all files are durable. Raise OSError."""
        self._disk.sync_folder(self._path + b"/" + PRIVATE_FOLDER)
        self._disk.sync_folder(self._path)

    @staticmethod
    def accepts_name(queue: bytes) -> bool:
        """Return whether this format can store a queue of that name."""
        return True

    @abstractmethod
    def write(self, family: Family, sums: Mapping[bytes, QueueSum], steps: Iterable[FamilyItem]) -> None:
        """Write the items of a family, whose sums are in `sums`, to its files, and fsync them. Raise OSError."""


class JournalTarget(ConversionTarget):
    """A target folder of Kestrel's journals. Each queue is one packed file."""

    kind = "journal"
    max_data_bytes = journal_records.MAX_DATA_BYTES
    files_per_queue = 1

    @staticmethod
    def accepts_name(queue: bytes) -> bool:
        file_name = journals.current_name(queue)
        file = journals.parse_file_name(file_name)
        return file is not None and file.queue == queue and len(file_name) <= journals.MAX_FILE_NAME_BYTES

    def write(self, family: Family, sums: Mapping[bytes, QueueSum], steps: Iterable[FamilyItem]) -> None:
        """Write the files of all queues of a family in parallel, step by step."""
        files = ResumableFiles(self._disk, self._path)
        queues = [RewrittenFile(files.file(journals.current_name(name)), sums[name].front) for name in family.queues]
        for step in steps:
            record = encode_item(step.data, step.add_ms, step.expiry_ms)
            for place, errors in zip(step.queue_indexes, step.errors, strict=True):
                queues[place].put(record, errors)
        files.finish()


class RewrittenFile:
    """The packed journal file of a queue.

    Only an item that was put back can have errors. So the first `front` items, up to the last one with errors, are
    opened and put back.
    """

    def __init__(self, file: ResumableFile, front: int) -> None:
        self._file = file
        self._front = front
        self._errors: list[int] = []

    def put(self, record: bytes, errors: int) -> None:
        """Append the record of the next item, with its errors."""
        self._file.append(record)
        if len(self._errors) < self._front:
            self._errors.append(errors)
            self._file.append(encode_open(len(self._errors)))
            if len(self._errors) == self._front:
                for xid in range(self._front, 0, -1):
                    self._file.append(encode_put_back(xid, self._errors[xid - 1]))


class ScrollTarget(ConversionTarget):
    """A target folder of scrolls. A parent and its children read the same items."""

    kind = "scroll"
    max_data_bytes = MAX_DATA_BYTES
    files_per_queue = 2

    def write(self, family: Family, sums: Mapping[bytes, QueueSum], steps: Iterable[FamilyItem]) -> None:
        """Write the writer files one after the other, and the reader files in parallel."""
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
        numbers = count(self._number)
        most_bytes = QueueSettings().default_journal_size_bytes
        writer: ResumableFile | None = None
        among = _TargetsEncoder(readers)
        item_id = 0
        for item_id, step in enumerate(steps, 1):
            targets = among.targets_of(step.queue_indexes)
            errors = step.errors[0]
            for place, others in zip(step.queue_indexes, step.errors, strict=True):
                readers[place].take(item_id, others if others != errors else None)
            records = targets + encode_put(item_id, step.data, step.add_ms, step.expiry_ms, errors)
            if writer is None or writer.size + len(records) > most_bytes:
                if writer is not None:
                    writer.finish()
                writer = files.file(writer_name(stem, next(numbers)))
                writer.append(WRITER_MAGIC)
            writer.append(records)
        for each in readers:
            each.end(item_id)
        files.finish()


class _ReaderFile:
    """The reader file of one queue. It marks the items before its first one and after its last one as done."""

    def __init__(self, reader: bytes, file: ResumableFile, items: int) -> None:
        self.reader = reader
        self.left = items
        self._file = file
        self._last_id = 0
        self._errors: dict[int, int] = {}

    def take(self, item_id: int, errors: int | None) -> None:
        """Record that the queue has an item. `errors` is its error count, None if it is the one of the PUT."""
        if not self._last_id:
            self._file.append(encode_state(ReaderState(DoneSet(item_id - 1))))
        self._last_id = item_id
        self.left -= 1
        if errors is not None:
            self._errors[item_id] = errors
            if len(self._errors) == _MOST_ERRORS:
                self._write_errors()

    def end(self, last_id: int) -> None:
        """Write the end of the file. `last_id` is the id of the scroll's last item."""
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
    """An encoder of TARGETS records. It considers only queues between their first and last items.

    The reader files of the others already mark the item as done, which needs no space in the writer files.
    """

    def __init__(self, readers: Sequence[_ReaderFile]) -> None:
        self._readers = readers
        self._active: set[int] = set()

    def targets_of(self, queue_indexes: Sequence[int]) -> bytes:
        """Return the TARGETS record before an item for these queues, or no bytes if all of them get it."""
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
"""Target classes by storage name."""
