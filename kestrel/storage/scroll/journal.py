"""A scroll: the journal that a parent queue and its children share. Each queue is a reader with its own head.

An item is written once, even if it is put to many readers. If it is not for all readers, a record before it lists the
readers that get it or do not get it.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final, NoReturn

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.disk.files import AppendFile
from kestrel.disk.reader import FileReader
from kestrel.errors import ItemTooLarge, QueueFailed, StorageRefused
from kestrel.item import Item
from kestrel.scroll.fileset import writer_name
from kestrel.scroll.hints import hint_path
from kestrel.scroll.item_reader import DamagedScrollFile, ScrollItemsRead, read_items
from kestrel.scroll.name_encoding import OWN_READER
from kestrel.scroll.records import (
    MAX_DATA_BYTES,
    WRITER_MAGIC,
    Targets,
    data_bytes,
    decode_put,
    encode_put,
    encode_targets,
)
from kestrel.scroll.remaining import count_remaining
from kestrel.scroll.writer_file import Counts, WriterFile
from kestrel.storage.failures import error_of, reason_of
from kestrel.storage.folder_resources import FolderResources
from kestrel.storage.scroll.files import truncate_file, truncate_if_possible
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.total_memory import MemoryLimit

RANGE_ITEMS: Final = 10_000
"""Number of items after which a read of a range stops."""

UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL: Final = 1 << 20
"""While the server's memory is full, puts are refused if more bytes than this are pending in the journal."""

_NO_SETTINGS: Final = QueueSettings()


class ScrollJournal:
    """The writer files of one journal, the pending items, and the readers.

    `readers` holds the served readers by their names in the writer files. `unserved` holds readers whose files cannot
    be read now, with the reader parts of their file names. Writer files are kept for them.
    """

    def __init__(self, stem: bytes, resources: FolderResources, files: list[WriterFile], next_id: int) -> None:
        self.stem = stem
        self.memory_limit: MemoryLimit = resources.memory_limit
        self.files = files
        """Writer files with items, in the order of their ids."""
        self.next_id = next_id
        self.readers: dict[bytes, ScrollQueue] = {}
        self.unserved: dict[bytes, bytes] = {}
        self.unsynced_deletions: set[bytes] = set()
        """Names of deleted readers whose deletion is not synced. A power failure may restore them."""
        self.deletion_marks: list[bytes] = []
        """Names of reader files that mark their readers as deleted."""
        self.has_lost_states = False
        """True if a reader file was damaged, which may have held the highest id."""
        self.obsolete_files: dict[bytes, int] = {}
        """Names and sizes of writer files that no reader needs and that are not yet removed."""
        self.unrepaired: set[bytes] = set()
        """Names of writer files whose damaged ends could not be copied. They are set aside instead of being erased."""
        self.failure: str | None = None
        """Reason why the journal has failed or was deleted, or None."""
        self.refusal: str | None = None
        """Reason why this journal accepts no puts now, or None."""
        self.max_file_bytes = _NO_SETTINGS.default_journal_size_bytes
        """Size at which a new writer file begins (defaultJournalSize)."""
        self.sync_period_ms: int | None = None
        """Strictest syncJournal of the readers in milliseconds; 0 syncs each commit, None never syncs."""
        self.unsynced_readers: set[ScrollQueue] = set()
        """Readers whose files have unsynced data."""
        self.rotations = 0
        self.repaired_bytes = 0
        self.unsynced: dict[WriterFile, AppendFile] = {}
        """Writer files with unsynced data."""
        self._unacknowledged: set[AppendFile] = set()
        """Writer files with data that have not been acknowledged to clients."""
        # Number of times that a file of the journal got a name, and how many of these a sync of the folder has covered.
        self.names, self.synced_names = 1, 0
        self.safe_id = next_id - 1
        """Id of the last item that is as durable as syncJournal requires."""
        self._untrusted: set[WriterFile] = set()
        """Writer files whose index may be wrong."""
        self._is_truncated = False
        """True if `truncate_to_acknowledged` has finished."""
        self.is_copied = False
        """True if, after a failed sync, all affected files were replaced by synced copies."""
        self._resources = resources
        self._pending: list[bytes] = []
        """PUT records that are not written, in order."""
        self._pending_bytes = 0
        self._pending_targets: dict[int, Targets] = {}
        """Targets of the pending items that are not for all readers, by item id."""
        self._current: tuple[WriterFile, AppendFile] | None = None
        """The file that items are appended to. It is the last of `files` once it has an item."""

    # Puts.

    def check_put(self, size: int) -> None:
        """Raise a `StorageError` if the journal cannot accept an item of `size` bytes now."""
        refusal = self._resources.disk_reserve.refusal or self.refusal
        if refusal is not None:
            raise StorageRefused(refusal)
        if size > MAX_DATA_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_DATA_BYTES} bytes")
        if self.memory_limit.is_reached and self._pending_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL:
            raise StorageRefused("the server's memory is full, and the disk is slow")

    @property
    def queues(self) -> Collection[ScrollQueue]:
        """The queues of all readers that are served."""
        return self.readers.values()

    @property
    def name(self) -> bytes:
        """Name of the parent queue, or of a child if the parent is not served."""
        queue = self.readers.get(OWN_READER) or next(iter(self.readers.values()), None)
        return b"" if queue is None else queue.name

    @property
    def last_id(self) -> int:
        """Id of the last item, written or pending."""
        return self.next_id - 1

    @property
    def last_written_id(self) -> int:
        """Id of the last item in the files, or 0 without files."""
        return self.files[-1].last_id if self.files else 0

    @property
    def written_id(self) -> int:
        """Last id that is not pending. Unlike `last_written_id`, it counts ids that were skipped."""
        return self.next_id - 1 - len(self._pending)

    def put(self, queues: Sequence[ScrollQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append an item for the readers in `queues`."""
        item_id = self.next_id
        self.next_id += 1
        record = encode_put(item_id, data, add_ms, expiry_ms)
        self._pending.append(record)
        self._pending_bytes += len(record)
        size = len(data)
        for queue in queues:
            queue.put(record, item_id, size)
        is_for_all = len(queues) == len(self.readers) and not (self.unserved or self.unsynced_deletions)
        if not is_for_all and not self._resources.is_all_shared:
            self._put_for_some(queues, item_id)

    def _put_for_some(self, queues: Sequence[ScrollQueue], item_id: int) -> None:
        """Record the targets of a pending item: the readers that get it, or those that do not if they are fewer."""
        readers = frozenset(queue.reader for queue in queues)
        are_left_out = 2 * len(queues) > len(self.readers) + len(self.unserved) + len(self.unsynced_deletions)
        if are_left_out:
            readers = frozenset((self.readers.keys() | self.unserved.keys() | self.unsynced_deletions) - readers)
        self._pending_targets[item_id] = Targets(readers, are_left_out)

    def skip_ids_to(self, item_id: int) -> None:
        """Let the next item get an id greater than `item_id`. Raises OSError if items are pending."""
        if item_id >= self.next_id:
            if self._pending:
                raise OSError(errno.EAGAIN, "try again in a moment")
            self.next_id = item_id + 1

    # Writing.

    def write(self) -> None:
        """Write the pending items. Raises OSError; unwritten items stay pending."""
        while self._pending:
            info, file = self._file_for(len(self._pending[0]))
            records, size = self._pending_that_fits(info)
            parts = [*([] if info.size else [WRITER_MAGIC]), *records]
            start = max(info.size, len(WRITER_MAGIC))
            file.append(b"".join(parts))
            self.unsynced[info] = file
            self._unacknowledged.add(file)
            self._resources.open_files.touch(file)
            self._written(info, size, start)

    def _written(self, info: WriterFile, count: int, start: int) -> None:
        """Index the first `count` pending items, which were written to the file from offset `start` on."""
        first_id, targets = self.written_id + 1, self._pending_targets
        if not info.first_id:
            self.files.append(info)
        info.mark(first_id, start)
        if not targets and count == len(self._pending):
            self._written_for_all(info, start)
            return
        offset = start
        for item_id, record in enumerate(self._pending[:count], first_id):
            target = targets.pop(item_id, None) if targets else None
            info.add_item(item_id, offset, data_bytes(record), target)
            offset += len(record) + (0 if target is None else len(encode_targets(target)))
            self._pending_bytes -= len(record)
        info.size = offset
        del self._pending[:count]

    def _written_for_all(self, info: WriterFile, start: int) -> None:
        """Index all pending items, which are all for all readers and were written from offset `start` on."""
        pending, self._pending = self._pending, []
        written_bytes, self._pending_bytes = self._pending_bytes, 0
        info.size = start + written_bytes
        counts = Counts(len(pending), sum(map(data_bytes, pending)))
        info.add_items(self.last_id, info.size - len(pending[-1]), counts)

    def _file_for(self, size: int) -> tuple[WriterFile, AppendFile]:
        """Return the file for the next item, whose record has `size` bytes. Begin a new file if the current is full."""
        if self._current is None and self.files and not self.files[-1].is_closed:
            last = self.files[-1]
            file = self.unsynced.get(last)
            if file is None:
                file = AppendFile(self._resources.disk, self._resources.path(last.file_name), last.size)
                file.synced_size = last.size
            self._current = last, file
        if self._current is not None:
            info = self._current[0]
            if not info.first_id or info.size + size <= self.max_file_bytes:
                return self._current
            self.rotate()
        began_s = self._resources.jobs.seconds()
        number = self._resources.numbers.next()
        info = WriterFile(writer_name(self.stem, number), number)
        self._current = info, AppendFile(self._resources.disk, self._resources.path(info.file_name))
        if self.files:
            self.rotations += 1
            self._resources.record_duration(self.name, "journal_rotation_usec", began_s)
        self.names += 1
        return self._current

    def _pending_that_fits(self, info: WriterFile) -> tuple[list[bytes], int]:
        """Return the records of the pending items that fit into the file, at least one, and the number of items."""
        first_id, targets = self.written_id + 1, self._pending_targets
        room = self.max_file_bytes - (info.size or len(WRITER_MAGIC))
        if not targets and self._pending_bytes <= room:
            return self._pending, len(self._pending)
        parts: list[bytes] = []
        count = 0
        for item_id, record in enumerate(self._pending, first_id):
            marker = encode_targets(targets[item_id]) if item_id in targets else b""
            room -= len(marker) + len(record)
            if count and room < 0:
                break
            parts += (marker, record)
            count += 1
        return parts, count

    def rotate(self) -> None:
        """Close the current file. The next item is written to a new file."""
        if self.files:
            self.files[-1].is_closed = True
        if self._current is not None:
            self._resources.open_files.close(self._current[1])
            self._current = None
            self._resources.disk.crash_point(crash_points.ROTATED)

    def settings_changed(self) -> None:
        """Apply the strictest settings of all readers. Called when the readers or their settings change."""
        settings = [queue.settings for queue in self.readers.values()] or [_NO_SETTINGS]
        self.max_file_bytes = min(each.default_journal_size_bytes for each in settings)
        periods = [each.sync_journal_ms for each in settings if each.sync_journal_ms is not None]
        self.sync_period_ms = min(periods, default=None)

    @property
    def has_synced_names(self) -> bool:
        """True if a sync of the folder covers the names of all files."""
        return self.names == self.synced_names

    def current_descriptor(self, info: WriterFile) -> int | None:
        """Return a duplicated descriptor of the file for a sync if it is the current file, or None."""
        if self._current is not None and self._current[0] is info:
            return self._current[1].duplicate()
        return None

    def acknowledge(self, queues: Sequence[ScrollQueue]) -> None:
        """Record that the written changes are acknowledged, so that no failure may truncate them.

        This covers the writer files and the reader files of `queues`.
        """
        for file in (*self._unacknowledged, *(queue.file for queue in queues)):
            file.acknowledged_size = file.size
        self._unacknowledged.clear()

    def synced(self, info: WriterFile, size: int) -> None:
        """Record that the first `size` bytes of a file are synced."""
        file = self.unsynced.get(info)
        if file is not None and file.synced_to(size):
            del self.unsynced[info]

    def known(self) -> Mapping[bytes, WriterFile]:
        """Return the indexes of the writer files that are certainly correct, by file name."""
        return {info.file_name: info for info in self.files if info not in self._untrusted}

    def mark_untrusted(self, info: WriterFile) -> None:
        """Record that the index of a file may be wrong."""
        self._untrusted.add(info)

    def fail(self, error: Exception) -> QueueFailed:
        """Fail all queues of the journal because a file cannot be read. Return the failure for clients."""
        return self._resources.kill(self, error)

    def abandon(self) -> list[bytes]:
        """Drop all content of a journal without readers. Return the names of its writer files, which can be erased."""
        self.rotate()
        self._pending.clear()
        self._pending_targets.clear()
        names = [*self.obsolete_files, *(info.file_name for info in self.files)]
        self.files, self._pending_bytes = [], 0
        self.obsolete_files.clear()
        self.unsynced.clear()
        self._resources.failed_syncs.discard(self.stem)
        return names

    @property
    def has_lost_a_sync(self) -> bool:
        """True if a sync of a file has failed. Then no existing file is written to again."""
        return self.stem in self._resources.failed_syncs

    def truncate_to_acknowledged(self) -> None:
        """Truncate all files to their acknowledged sizes. After an OSError, the caller must call it again."""
        if self._is_truncated:
            return
        try:
            self._truncate_to_acknowledged()
        except OSError:
            self._resources.failed_syncs.add(self.stem)  # a sync of a truncated file may have failed
            raise
        self._is_truncated = True

    def _truncate_to_acknowledged(self) -> None:
        resources = self._resources
        disk, next_number, is_anew = resources.disk, resources.numbers.next, self.has_lost_a_sync
        disk.erase(hint_path(resources.folder, self.stem))
        self._truncate_unacknowledged()
        written = dict(self.unsynced)
        if self._current is not None:
            written.setdefault(*self._current)  # a failed write may have created the file
        for info, file in written.items():
            size = file.acknowledged_size
            if not size:
                disk.erase(file.path)
            elif is_anew or file.has_torn_tail or file.size != size:
                truncate_file(disk, file, size, next_number(), is_anew=is_anew)
            if info.size != size:
                self.mark_untrusted(info)
            info.size = size
            if is_anew:
                self.unsynced.pop(info, None)
        for queue in self.readers.values():
            if queue.file.has_torn_tail or queue.file.acknowledged_size != queue.file.size:
                truncate_file(disk, queue.file, queue.file.acknowledged_size, next_number(), is_anew=is_anew)
        if is_anew:
            disk.sync_folder(resources.folder)  # or a power failure could restore changes that were reported as failed
        self.is_copied = is_anew

    def _truncate_unacknowledged(self) -> None:
        """Truncate all files to their acknowledged sizes without a sync, and ignore errors.

        Waiting clients are told next that their commits failed. A restart must not find these commits, even if no later
        sync succeeds.
        """
        for file in self.unsynced.values():
            if not file.acknowledged_size:
                with suppress(OSError):
                    self._resources.disk.erase(file.path)
        for file in (*self.unsynced.values(), *(queue.file for queue in self.readers.values())):
            if 0 < file.acknowledged_size < file.size:
                truncate_if_possible(file, file.acknowledged_size)
                file.close()

    def close_files(self) -> None:
        """Close the descriptors of all files."""
        if self._current is not None:
            self._resources.open_files.close(self._current[1])
        for queue in self.readers.values():
            self._resources.open_files.close(queue.file)

    # Reading.

    def file_with(self, item_id: int) -> WriterFile | None:
        """Return the file with the first written item whose id is at least `item_id`, or None."""
        index = bisect_left(self.files, item_id, key=attrgetter("last_id"))
        return self.files[index] if index < len(self.files) else None

    def fill_from_pending(self, queue: ScrollQueue) -> None:
        """Append pending items to the window of a reader until it is full."""
        first_id = self.written_id + 1
        seen = max(0, queue.next_id - first_id)
        for item_id, record in enumerate(self._pending[seen:], first_id + seen):
            if queue.has_head and not queue.has_room:
                break
            target = self._pending_targets.get(item_id)
            if target is None or target.has(queue.reader):
                queue.append_read_items(ScrollItemsRead([record], item_id + 1, 0))
            else:
                queue.append_read_items(ScrollItemsRead([], item_id + 1, 0))
            if not queue.behind_items:
                break

    def count_remaining_for(self, queue: ScrollQueue) -> Counts:
        """Return the counts of a reader's items from its `next_id` on. Raises OSError."""
        after_id = max(queue.next_id - 1, queue.done.head)
        counts = count_remaining(queue.reader, after_id, queue.done.ranges(), self.files, self.open_file)
        for item_id, record in enumerate(self._pending, self.written_id + 1):
            target = self._pending_targets.get(item_id)
            is_given = target is None or target.has(queue.reader)
            if item_id >= queue.next_id and is_given and item_id not in queue.done:
                counts = counts.plus(Counts(1, data_bytes(record)))
        return counts

    def open_file(self, file_name: bytes) -> FileReader:
        """Open a file of the journal for reading. Raises OSError."""
        return FileReader(self._resources.disk, self._resources.path(file_name))

    def read_range(
        self, queue: ScrollQueue, first_id: int, end_id: int, max_bytes: int
    ) -> Deferred[list[tuple[int, Item]]]:
        """Read a reader's items with ids from `first_id` to below `end_id`, in a thread.

        Read at most `max_bytes` of data, but at least one item if there is one, and stop after `RANGE_ITEMS` items. The
        Deferred fails with `QueueFailed`.
        """
        files = [
            (file.file_name, file.before(first_id).offset, file.size)
            for file in self.files
            if file.last_id >= first_id and file.first_id < end_id
        ]
        reading = self._resources.jobs.run(self._read_range, files, queue.reader, first_id, end_id, max_bytes)
        return reading.addErrback(self._cannot_be_read)

    def end_of(self, first_id: int, max_items: int) -> int:
        """Return an end id for a range of at most `max_items` safe items that begins at `first_id`.

        Ids at the beginning that are in no file do not count as items.
        """
        file = self.file_with(first_id)
        first_there = self.safe_id + 1 if file is None else max(first_id, file.first_id)
        return first_id if first_there > self.safe_id else min(first_there + max_items, self.safe_id + 1)

    def _cannot_be_read(self, failure: Failure) -> NoReturn:
        """Raise `QueueFailed` for a failed read of a range. Fail the journal if a file is damaged."""
        error = error_of(failure)
        if isinstance(error, DamagedScrollFile):
            for info in self.files:
                self.mark_untrusted(info)
            self.fail(error)
        raise QueueFailed(f"the items cannot be read: {reason_of(error)}") from error

    def _read_range(
        self, files: Sequence[tuple[bytes, int, int]], target_reader: bytes, first_id: int, end_id: int, max_bytes: int
    ) -> list[tuple[int, Item]]:
        items: list[tuple[int, Item]] = []
        for file_name, offset, size in files:
            with self.open_file(file_name) as reader:
                while len(items) < RANGE_ITEMS:
                    read = read_items(reader, offset, size, first_id, target_reader, RANGE_ITEMS, max_bytes)
                    for record in read.records:
                        item = decode_put(record)
                        max_bytes -= len(item.data)
                        if item.id >= end_id or (items and max_bytes < 0):
                            return items
                        items.append((item.id, item))
                    first_id, offset = read.next_id, read.offset
                    if not read.records:
                        break
        return items

    # Statistics.

    @property
    def bytes(self) -> int:
        """Total size of the writer files."""
        return sum(file.size for file in self.files) + sum(self.obsolete_files.values())

    def bytes_behind(self, head: int) -> int:
        """Return the total size of the writer files that have items after the id `head`."""
        return sum(file.size for file in self.files if file.last_id > head)

    @property
    def stats(self) -> Mapping[str, int]:
        """Statistics of the journal, by name."""
        return {
            "logsize": self.files[-1].size if self.files else 0,
            "journal_rewrites": 0,
            "journal_rotations": self.rotations,
            "journal_bytes": self.bytes,
            "journal_files": len(self.files) + len(self.obsolete_files),
            "journal_repaired_bytes": self.repaired_bytes,
        }
