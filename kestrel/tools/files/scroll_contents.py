"""The scrolls of a folder, their files, records and queues, and the remaining items. Nothing is written."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.item import Item
from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.done_set import DoneSet
from kestrel.scroll.fileset import group_by_stem, parse_file_name
from kestrel.scroll.name_encoding import DEFAULT_READER, OWN_READER, EscapedNames, QueueLocation, queue_name_of
from kestrel.scroll.reader_file import ReaderState, read_state, refuse_impossible_ids
from kestrel.scroll.records import (
    LARGEST_ID,
    READER_MAGIC,
    WRITER_MAGIC,
    RecordCommand,
    ScrollFileRecord,
    Targets,
    decode_put,
)
from kestrel.scroll.writer_file import WriterFile
from kestrel.scroll.writer_index import first_id_in, index_writer_file
from kestrel.tools.files.snapshot_files import FileReadResult, ItemTally, SnapshotFiles
from kestrel.tools.formatting import show_path, show_queue, spell_queue
from kestrel.tools.progress import ByteProgress, Progress


class ScrollQueueFile(NamedTuple):
    """A queue that reads a scroll."""

    name: bytes | None
    """Queue name; None if only its hash is known, or the file name does not spell a valid name."""
    reader: bytes
    """Name of the reader in a TARGETS record."""
    file_name: bytes | None
    """Name of the reader file; None if there is none, so that all items remain."""
    stem: bytes
    """Prefix of the names of the scroll's files."""

    @property
    def shown(self) -> str:
        return f"queue {self.shown_name}" if self.name is not None else f"queue of {self.shown_name}"

    @property
    def shown_name(self) -> str:
        """Queue name if it is known, else the file name or the scroll's stem."""
        return show_path(self.file_name or self.stem) if self.name is None else show_queue(self.name)

    @property
    def spelled(self) -> str | None:
        return None if self.name is None else spell_queue(self.name)

    @property
    def why_unknown(self) -> str:
        """Reason why the name is not known, for a queue without one."""
        is_hashed = b"::" in (self.file_name or self.stem)
        return ".kestrel/names/ does not have it" if is_hashed else "no queue's name is spelled like that"


class Scroll(NamedTuple):
    """The files of one scroll at one moment, and the queues that read them."""

    stem: bytes
    name: bytes | None
    """Name of the parent queue; None if it is unknown, as in `ScrollQueueFile`."""
    writers: tuple[bytes, ...]
    """Names of the writer files, in the order of their numbers."""
    queues: tuple[ScrollQueueFile, ...]

    @property
    def shown(self) -> str:
        return f"scroll {show_path(self.stem) if self.name is None else show_queue(self.name)}"

    @property
    def spelled(self) -> str | None:
        return None if self.name is None else spell_queue(self.name)

    @property
    def file_names(self) -> list[bytes]:
        """Names of all files, writer files first, so that items done after that are still found in them."""
        return [*self.writers, *(queue.file_name for queue in self.queues if queue.file_name is not None)]


class ScrollSnapshot(SnapshotFiles):
    """The open files of a scroll. `chosen` are its selected queues."""

    def __init__(
        self,
        disk: Disk,
        folder: bytes,
        scroll: Scroll,
        chosen: Sequence[ScrollQueueFile],
        *,
        is_file_alone: bool = False,
    ) -> None:
        super().__init__(disk, folder, scroll.file_names)
        self.scroll = scroll
        self.chosen = chosen
        self.is_file_alone = is_file_alone
        """True if only a single file is open, so that no queues or no items are known."""


def scrolls_in(disk: Disk, folder: bytes, file_names: Iterable[bytes]) -> dict[bytes, Scroll]:
    """Return the scrolls that consist of these files, by stem. Temporary files alone make no scroll. Raise OSError."""
    names = EscapedNames(disk, folder)
    scrolls: dict[bytes, Scroll] = {}
    for stem, files in group_by_stem(file_names).items():
        parent = names.name_of(stem)
        readers = dict(files.readers)
        if OWN_READER in readers and DEFAULT_READER in readers:
            readers.pop(OWN_READER if _is_deleted(disk, folder + b"/" + readers[OWN_READER]) else DEFAULT_READER)
        queues = [_queue_file(names, stem, parent, part, name) for part, name in sorted(readers.items())]
        if not queues and files.writers:
            queues.append(ScrollQueueFile(parent, OWN_READER, None, stem))
        if queues:
            writers = tuple(file.file_name for file in files.writers)
            scrolls[stem] = Scroll(stem, parent, writers, tuple(queues))
    return scrolls


def _is_deleted(disk: Disk, reader_path: bytes) -> bool:
    try:
        with FileReader(disk, reader_path) as reader:
            state, _ = read_state(reader)
    except OSError:  # opening it later will report the error
        return not disk.is_there(reader_path)
    return state.is_deleted


def _queue_file(
    names: EscapedNames, stem: bytes, parent: bytes | None, part: bytes, file_name: bytes
) -> ScrollQueueFile:
    name = parent
    if parent is not None and part not in (DEFAULT_READER, OWN_READER):
        child = names.name_of(part)
        name = None if child is None else queue_name_of(QueueLocation(parent, child))
    return ScrollQueueFile(name, part or OWN_READER, file_name, stem)


def writer_alone(disk: Disk, folder: bytes, file_name: bytes) -> ScrollSnapshot:
    """Open a single writer file of any name. Raise OSError."""
    stem, name, _ = parse_scroll_file_name(disk, folder, file_name)
    return ScrollSnapshot(disk, folder, Scroll(stem, name, (file_name,), ()), (), is_file_alone=True)


def reader_alone(disk: Disk, folder: bytes, file_name: bytes) -> ScrollSnapshot:
    """Open a single reader file of any name. Raise OSError."""
    stem, parent, queue = parse_scroll_file_name(disk, folder, file_name)
    return ScrollSnapshot(disk, folder, Scroll(stem, parent, (), (queue,)), (queue,), is_file_alone=True)


def parse_scroll_file_name(disk: Disk, folder: bytes, file_name: bytes) -> tuple[bytes, bytes | None, ScrollQueueFile]:
    """Return the stem and the name of the scroll that a file name refers to, and the queue."""
    file = parse_file_name(file_name)
    if file is None:
        return file_name, None, ScrollQueueFile(None, OWN_READER, file_name, file_name)
    names = EscapedNames(disk, folder)
    parent = names.name_of(file.stem)
    return file.stem, parent, _queue_file(names, file.stem, parent, file.part, file_name)


class QueueRecord(NamedTuple):
    """A record, with its meaning after the records before it."""

    record: ScrollFileRecord
    item: Item | None = None
    """Item of a PUT; None for other records."""
    targets: Targets | None = None
    """Queues that get the item of a PUT; None for all."""
    is_ignored: bool = False
    """True for a PUT whose id is not higher than all ids before it."""


class ScrollQueueContents:
    """Contents of one queue: its reader file's state, and a tally of its remaining items."""

    def __init__(self, queue: ScrollQueueFile, file: FileReadResult | None, state: ReaderState, now_ms: int) -> None:
        self.queue = queue
        self.file = file
        self.state = state
        self.left = ItemTally(now_ms)

    def has(self, item_id: int, targets: Targets | None) -> bool:
        """Return whether the queue still has that item."""
        is_for_it = targets is None or targets.has(self.queue.reader)
        return is_for_it and item_id not in self.state.done and not self.state.is_deleted


class ScrollContents:
    """The records and remaining items of a `ScrollSnapshot`. All methods may raise OSError."""

    def __init__(self, scroll: ScrollSnapshot, now_ms: int, progress: Progress) -> None:
        self.scroll = scroll.scroll
        self.size = scroll.size
        self._opened = scroll
        self._now_ms = now_ms
        self._progress = progress
        self.writers: list[FileReadResult] = []
        """Writer files in order, once they have been read."""
        queues = {queue.reader: self._read_queue(queue) for queue in self.scroll.queues}
        self.queues = [queues[queue.reader] for queue in scroll.chosen]
        """Queues that the snapshot selects."""
        self.items = ItemTally(now_ms)
        """Tally of all items if no queue is known, as for a single writer file."""
        self.next_id = max((read.state.done.last for read in queues.values()), default=0) + 1
        """Id of the next item to be put; valid once the writer files have been read."""

    def _read_queue(self, queue: ScrollQueueFile) -> ScrollQueueContents:
        if queue.file_name is None:
            return ScrollQueueContents(queue, None, ReaderState(), self._now_ms)
        reader = self._opened.readers[queue.file_name]
        file = FileReadResult(queue.file_name, reader.size)
        state, end = read_state(reader)
        if not state.is_checked and state.last_id:
            state, end = refuse_impossible_ids(state, end, self._last_written_id)
        file.end = end
        return ScrollQueueContents(queue, file, state, self._now_ms)

    @cached_property
    def _last_written_id(self) -> int:
        """Id of the last item in the writer files, or 0 if there is none. Only headers are read."""
        readers = self._opened.readers
        first_ids = [(first_id_in(readers[name]), name) for name in self.scroll.writers]
        _, name = max((each for each in first_ids if each[0] <= LARGEST_ID), default=(0, None))
        if name is None:
            return 0
        file = WriterFile(name, 0)
        index_writer_file(readers[name], file)
        return file.last_id

    @property
    def files(self) -> list[FileReadResult]:
        """Files read: the writer files, and the reader files of the selected queues."""
        return [*self.writers, *(read.file for read in self.queues if read.file is not None)]

    def read(self) -> None:
        """Read all records, and count the remaining items."""
        deque(self.records(), maxlen=0)

    def records(self) -> Iterator[tuple[FileReadResult, int, QueueRecord]]:
        """Yield every record with its file and offset, writer files first. Count the remaining items."""
        left = RemainingItems(
            {read.queue.reader: read.state.done for read in self.queues if not read.state.is_deleted}, self._now_ms
        )
        for file, offset, shown in self.written():
            item = shown.item
            if item is not None and not shown.is_ignored:
                size = len(item.data)
                left.add(item.id, size, item.add_ms, item.expiry_ms, shown.targets)
                if not self.scroll.queues:
                    self.items.add(size, item.add_ms, item.expiry_ms)
            yield file, offset, shown
        tallies = left.tallies()
        for read in self.queues:
            read.left = tallies.get(read.queue.reader, read.left)
            if read.file is not None:
                cursor = ScrollCursor(self._opened.readers[read.file.file_name], READER_MAGIC)
                for offset, record in cursor.records():
                    read.file.records[record.name] += 1
                    yield read.file, offset, QueueRecord(record)

    def written(self) -> Iterator[tuple[FileReadResult, int, QueueRecord]]:
        """Yield the records of the writer files, in order, each with its file and offset."""
        self.writers = []
        last_id = 0
        with self._progress(f"{self.scroll.shown}: reading", self.size) as progress:
            in_order, last_one = self._in_order(progress)
            for reader, file_name in in_order:
                file = FileReadResult(file_name, reader.size)
                self.writers.append(file)
                cursor = ScrollCursor(reader, WRITER_MAGIC)
                file.end = cursor.end
                targets: Targets | None = None
                for offset, record in cursor.records():
                    if record.command == RecordCommand.PUT:
                        item = decode_put(record.raw)
                        is_ignored = item.id <= last_id
                        last_id = max(last_id, item.id)
                        shown = QueueRecord(record, item, targets, is_ignored)
                    else:
                        shown = QueueRecord(record)
                    targets = record.targets if record.command == RecordCommand.TARGETS else None
                    file.records[record.name] += 1
                    yield file, offset, shown
                if len(self.writers) <= last_one and file.end.is_unfinished:
                    file.end = ReadEnd(file.end.offset, f"{file.end.problem}, and a later file follows it")
            self._opened.watch(None)
        self.next_id = max(self.next_id, last_id + 1)

    def _in_order(self, progress: ByteProgress) -> tuple[list[tuple[FileReader, bytes]], int]:
        """Return the writer files in the order of their first items, and the index of the last file with an item.

        Files without an item are last. A writer ends a file before it begins the next, so only the last file can be
        cut short by a crash, or still be written.
        """
        readers = self._opened.readers
        files = sorted((first_id_in(readers[name]), place, name) for place, name in enumerate(self.scroll.writers))
        self._opened.watch(progress)
        last_one = sum(first_id <= LARGEST_ID for first_id, _, _ in files) - 1
        return [(readers[name], name) for _, _, name in files], last_one

    def added(self) -> Iterator[Item]:
        """Yield all items in the files that are for one of the selected queues, or all items of a single file."""
        readers = [queue.reader for queue in self._opened.chosen]
        is_all = len(readers) == len(self.scroll.queues)
        return self._items(lambda item, targets: is_all or targets is None or any(map(targets.has, readers)))

    def queued(self) -> Iterator[Item]:
        """Yield the remaining items of each selected queue in turn, or all items of a single file."""
        if not self.scroll.queues:
            yield from self._items(lambda item, targets: True)
        for read in self.queues:
            yield from self._items(lambda item, targets: read.has(item.id, targets))  # noqa: B023

    def _items(self, has: Callable[[Item, Targets | None], bool]) -> Iterator[Item]:
        for _, _, shown in self.written():
            if shown.item is not None and not shown.is_ignored and has(shown.item, shown.targets):
                yield shown.item


_NEVER: Final = sys.maxsize
_MOST_TARGETS: Final = 64
"""Distinct targets that are tallied separately before the tallies are added to the readers'."""


class RemainingReaders:
    """The readers that still have an item, while ids ascend. Readers are indexes into `done`.

    Between two boundaries of done ranges, the cost of an item for all does not depend on the number of readers.
    """

    def __init__(self, done: Mapping[bytes, DoneSet]) -> None:
        self._names = list(done)
        self._indexes = {name: index for index, name in enumerate(done)}
        self._boundaries = [_iter_boundaries(each) for each in done.values()]
        self._next = [(next(boundaries), index) for index, boundaries in enumerate(self._boundaries)]
        heapify(self._next)
        self._has = [False] * len(done)
        self.all: list[int] = []
        """Readers that have an item without targets."""

    def is_boundary(self, item_id: int) -> bool:
        """Return whether `advance` to this id would change the readers."""
        return bool(self._next) and self._next[0][0] <= item_id

    def advance(self, item_id: int) -> None:
        """Go to an item. Its id must be higher than all before it."""
        if not self.is_boundary(item_id):
            return
        while self._next[0][0] <= item_id:
            index = self._next[0][1]
            self._has[index] = not self._has[index]
            heapreplace(self._next, (next(self._boundaries[index], _NEVER), index))
        self.all = [index for index, has in enumerate(self._has) if has]

    def of(self, targets: Targets | None) -> list[int]:
        """Return the readers that have an item with these targets, ascending."""
        if targets is None:
            return self.all
        if targets.are_left_out:
            return [index for index in self.all if self._names[index] not in targets.readers]
        indexes = (self._indexes.get(name) for name in targets.readers)
        return sorted(index for index in indexes if index is not None and self._has[index])


def _iter_boundaries(done: DoneSet) -> Iterator[int]:
    """Yield ascending ids that alternately begin a range of remaining items and a range of done items."""
    yield done.head + 1
    for first, last in done.ranges():
        yield first
        yield last + 1


class RemainingItems:
    """Tallies of the remaining items of several readers."""

    def __init__(self, done: Mapping[bytes, DoneSet], now_ms: int) -> None:
        self._now_ms = now_ms
        self._tallies = {reader: ItemTally(now_ms) for reader in done}
        self._in_order = list(self._tallies.values())
        self._readers = RemainingReaders(done)
        self._pending_tallies: dict[Targets | None, ItemTally] = {}
        """Tallies of the items since the last boundary, by target."""

    def add(self, item_id: int, size: int, add_ms: int, expiry_ms: int, targets: Targets | None) -> None:
        """Count the next item. Its id must be higher than all before it."""
        if self._readers.is_boundary(item_id):
            self._flush()
            self._readers.advance(item_id)
        tally = self._pending_tallies.get(targets)
        if tally is None:
            if len(self._pending_tallies) >= _MOST_TARGETS:
                self._flush()
            tally = self._pending_tallies[targets] = ItemTally(self._now_ms)
        tally.add(size, add_ms, expiry_ms)

    def _flush(self) -> None:
        for targets, tally in self._pending_tallies.items():
            for index in self._readers.of(targets):
                self._in_order[index].join(tally)
        self._pending_tallies.clear()

    def tallies(self) -> Mapping[bytes, ItemTally]:
        self._flush()
        return self._tallies
