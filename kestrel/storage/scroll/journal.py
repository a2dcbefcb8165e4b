"""A scroll: the journal that a parent queue and its children share, each a reader with a head of its own.

An item that is put to many of them is written once. One that is not for all of them stands behind a record that says
for whom it is.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final, NoReturn

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kestrel.config.model import QueueSettings
from kestrel.disk import crash_points
from kestrel.disk.append_file import AppendFile
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
from kestrel.storage.scroll.files import truncate_file, truncate_if_possible
from kestrel.storage.scroll.queue import ScrollQueue
from kestrel.storage.scroll.scroll_resources import ScrollResources
from kestrel.storage.total_memory import MemoryLimit

RANGE_ITEMS: Final = 10_000
"""No more is read at once for a range."""


UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL: Final = 1 << 20
"""While the server's memory is full, a journal whose commits wait for the disk takes no more than that."""

_NO_SETTINGS: Final = QueueSettings()


class Unsynced:
    """How much of a file a sync is known to have reached, and how much stays whatever fails."""

    __slots__ = ("acknowledged_size", "synced_size")

    def __init__(self, synced_size: int, acknowledged_size: int) -> None:
        self.synced_size = synced_size
        self.acknowledged_size = acknowledged_size


class ScrollJournal:
    """The writer files of one journal, what is not written to them yet, and its readers.

    `readers` holds those that are served, by their names in the writer files; `unserved` has the others, with the part
    of their file names, because they cannot be read now: the journal is kept for them.
    """

    def __init__(self, stem: bytes, resources: ScrollResources, files: list[WriterFile], next_id: int) -> None:
        self.stem = stem
        self.memory_limit: MemoryLimit = resources.memory_limit
        self.files = files
        """Oldest first."""
        self.next_id = next_id
        self.readers: dict[bytes, ScrollQueue] = {}
        self.unserved: dict[bytes, bytes] = {}
        self.unsynced_deletions: set[bytes] = set()
        """Readers that are deleted, and may be there again after a power failure."""
        self.deletion_marks: list[bytes] = []
        """The names of reader files that say that their reader is deleted."""
        self.has_lost_states = False
        """Whether a reader file was damaged, which may have held the highest id."""
        self.obsolete_files: dict[bytes, int] = {}
        """The names and sizes of writer files that nobody needs, and that are not gone yet."""
        self.unrepaired: set[bytes] = set()
        """The names of writer files whose ends could not be set aside; the whole file is, in place of being erased."""
        self.journal_refusal: str | None = None
        """None, or why this journal takes no put now."""
        self.most_file_bytes = _NO_SETTINGS.default_journal_size_bytes
        """How large a writer file becomes (defaultJournalSize),"""
        self.sync_period_ms: int | None = None
        """and when it is synced (syncJournal)."""
        self.unsynced_readers: set[ScrollQueue] = set()
        """Those whose files no sync is known to have reached whole."""
        self.rotations = 0
        self.repaired_bytes = 0
        self.unsynced: dict[WriterFile, Unsynced] = {}
        """Files that no sync is known to have reached whole."""
        self._unacknowledged: set[WriterFile] = set()
        """Those of them that were written to since somebody was told that what is in them is kept."""
        self.names, self.synced_names = 1, 0
        """How often one of its files got a name, and how many of those times a sync of the folder has reached."""
        self.safe_id = next_id - 1
        """The last item that is as safe as was promised."""
        self._untrusted: set[WriterFile] = set()
        self._is_truncated = False
        self.is_copied = False
        """Whether all of its files that a failed sync may be to blame for were written anew when it died."""
        self._resources = resources
        self._pending: list[bytes] = []
        """The PUT records that are not written, in order,"""
        self._pending_bytes = 0
        self._pending_targets: dict[int, Targets] = {}
        """and for whom those are, by id, that are not for all readers."""
        self._current: tuple[WriterFile, AppendFile] | None = None
        """The file that items are appended to: the last of `files` once it holds one."""

    # Items in.

    def check_put(self, size: int) -> None:
        """Raise the `StorageError` why it takes no item of so many bytes now, if there is one."""
        refusal = self._resources.refusal() or self.journal_refusal
        if refusal is not None:
            raise StorageRefused(refusal)
        if size > MAX_DATA_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_DATA_BYTES} bytes")
        if self.memory_limit.is_reached and self._pending_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL:
            raise StorageRefused("the server's memory is full, and the disk is slow")

    @property
    def queue_name(self) -> bytes:
        """Of the parent, or of a child if the parent is none of those that are served."""
        queue = self.readers.get(OWN_READER) or next(iter(self.readers.values()), None)
        return b"" if queue is None else queue.name

    @property
    def last_id(self) -> int:
        """The id of the last item, written or not."""
        return self.next_id - 1

    @property
    def last_written_id(self) -> int:
        """The id of the last item in its files, or 0 without files."""
        return self.files[-1].last_id if self.files else 0

    @property
    def written_id(self) -> int:
        """The id of the last item that is written."""
        return self.next_id - 1 - len(self._pending)

    def put(self, queues: Sequence[ScrollQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append one item, which is for these of its readers."""
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
        """Readers that it is not for find that out when they come to it."""
        readers = frozenset(queue.reader for queue in queues)
        are_left_out = 2 * len(queues) > len(self.readers) + len(self.unserved) + len(self.unsynced_deletions)
        if are_left_out:
            readers = frozenset((self.readers.keys() | self.unserved.keys() | self.unsynced_deletions) - readers)
        self._pending_targets[item_id] = Targets(readers, are_left_out)

    def skip_ids_to(self, item_id: int) -> None:
        """Let the next item get an id behind that one. Raises OSError while some are not written."""
        if item_id >= self.next_id:
            if self._pending:
                raise OSError(errno.EAGAIN, "try again in a moment")
            self.next_id = item_id + 1

    # Writing.

    def write(self) -> None:
        """Write what is pending. An OSError leaves what is not written pending."""
        while self._pending:
            info, file = self._file_for(len(self._pending[0]))
            records, size = self._pending_that_fits(info)
            parts = [*([] if info.size else [WRITER_MAGIC]), *records]
            start = max(info.size, len(WRITER_MAGIC))
            file.append(b"".join(parts))
            if info not in self.unsynced:
                self.unsynced[info] = Unsynced(info.size, info.size)
            self._unacknowledged.add(info)
            self._resources.open_files.touch(file)
            self._written(info, size, start)

    def _written(self, info: WriterFile, count: int, start: int) -> None:
        """So many of the pending items stand in that file now, from that offset on."""
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
        """The same for all that is pending, none of which is for some readers alone."""
        pending, self._pending = self._pending, []
        written_bytes, self._pending_bytes = self._pending_bytes, 0
        info.size = start + written_bytes
        counts = Counts(len(pending), sum(map(data_bytes, pending)))
        info.add_items(self.last_id, info.size - len(pending[-1]), counts)

    def _file_for(self, size: int) -> tuple[WriterFile, AppendFile]:
        """The file that takes the next item, of that size: another one when this one is full."""
        if self._current is None and self.files and not self.files[-1].is_closed:
            last = self.files[-1]
            self._current = last, AppendFile(self._resources.disk, self._resources.path(last.file_name), last.size)
        if self._current is not None:
            info = self._current[0]
            if not info.first_id or info.size + size <= self.most_file_bytes:
                return self._current
            self.rotate()
        began_s = self._resources.jobs.seconds()
        number = self._resources.numbers.next()
        info = WriterFile(writer_name(self.stem, number), number)
        self._current = info, AppendFile(self._resources.disk, self._resources.path(info.file_name))
        if self.files:
            self.rotations += 1
            self._resources.record_duration(self.queue_name, "journal_rotation_usec", began_s)
        self.names += 1
        return self._current

    def _pending_that_fits(self, info: WriterFile) -> tuple[list[bytes], int]:
        """Of what is pending, the bytes of as many items as that file takes, at least one; and how many that is."""
        first_id, targets = self.written_id + 1, self._pending_targets
        room = self.most_file_bytes - (info.size or len(WRITER_MAGIC))
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
        """Append nothing more to the current file."""
        if self.files:
            self.files[-1].is_closed = True
        if self._current is not None:
            self._resources.open_files.close(self._current[1])
            self._current = None
            self._resources.disk.crash_point(crash_points.ROTATED)

    def settings_changed(self) -> None:
        """Its readers are others, or their settings: of those that differ the strictest holds."""
        settings = [queue.settings for queue in self.readers.values()] or [_NO_SETTINGS]
        self.most_file_bytes = min(each.default_journal_size_bytes for each in settings)
        periods = [each.sync_journal_ms for each in settings if each.sync_journal_ms is not None]
        self.sync_period_ms = min(periods, default=None)

    @property
    def has_synced_names(self) -> bool:
        """Whether its files are found by their names after a power failure."""
        return self.names == self.synced_names

    def current_descriptor(self, info: WriterFile) -> int | None:
        """A descriptor of that file, for a thread to sync, if it is the current one."""
        if self._current is not None and self._current[0] is info:
            return self._current[1].duplicate()
        return None

    def acknowledge(self, queues: Sequence[ScrollQueue]) -> None:
        """Somebody is told that what was recorded on these queues is kept."""
        for info in self._unacknowledged:
            if info in self.unsynced:
                self.unsynced[info].acknowledged_size = info.size
        self._unacknowledged.clear()
        for queue in queues:
            queue.file.acknowledged_size = queue.file.size

    @property
    def needs_sync(self) -> bool:
        """Whether something is to be kept that no sync has reached."""
        return any(each.acknowledged_size > each.synced_size for each in self.unsynced.values()) or any(
            queue.file.acknowledged_size > queue.file.synced_size for queue in self.unsynced_readers
        )

    def synced(self, info: WriterFile, size: int) -> None:
        """A sync has reached so much of that file."""
        each = self.unsynced.get(info)
        if each is not None and size == info.size:
            del self.unsynced[info]
        elif each is not None:
            each.synced_size = size
            each.acknowledged_size = max(each.acknowledged_size, size)

    def known(self) -> Mapping[bytes, WriterFile]:
        """What is known for certain of its writer files, by name."""
        return {info.file_name: info for info in self.files if info not in self._untrusted}

    def mark_untrusted(self, info: WriterFile) -> None:
        """What is known of that file may be wrong."""
        self._untrusted.add(info)

    def fail(self, error: Exception) -> QueueFailed:
        """One of its files cannot be read as it should: all of its queues are dead. Returns what to tell."""
        return self._resources.kill(self, error)

    def abandon(self) -> list[bytes]:
        """It has no readers any more, and nothing that it holds counts. The names of its writer files."""
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
        """Whether a sync of its files has failed: none of them is written to again."""
        return self.stem in self._resources.failed_syncs

    def truncate_to_acknowledged(self) -> None:
        """Let nothing count but what is to be kept. An OSError leaves that to be done again."""
        if self._is_truncated:
            return
        try:
            self._truncate_to_acknowledged()
        except OSError:
            self._resources.failed_syncs.add(self.stem)  # perhaps of what was cut
            raise
        self._is_truncated = True

    def _truncate_to_acknowledged(self) -> None:
        resources = self._resources
        disk, next_number, is_anew = resources.disk, resources.numbers.next, self.has_lost_a_sync
        disk.erase(hint_path(resources.folder, self.stem))
        self._truncate_unacknowledged()
        if self._current is not None and self._current[0] not in self.unsynced:
            info, file = self._current
            if not info.size:
                disk.erase(file.path)  # a failed write may have begun it
            elif is_anew or file.has_torn_tail:
                truncate_file(disk, file, info.size, next_number(), is_anew=is_anew)
        for info, unsynced in list(self.unsynced.items()):
            file = AppendFile(disk, resources.path(info.file_name), info.size)
            is_current = self._current is not None and self._current[0] is info
            if not unsynced.acknowledged_size:
                disk.erase(file.path)
            elif is_anew or is_current or unsynced.acknowledged_size < info.size:
                truncate_file(disk, file, unsynced.acknowledged_size, next_number(), is_anew=is_anew)
            if unsynced.acknowledged_size != info.size:
                self.mark_untrusted(info)
            info.size = unsynced.acknowledged_size
            if is_anew:
                del self.unsynced[info]
        for queue in self.readers.values():
            if queue.file.has_torn_tail or queue.file.acknowledged_size != queue.file.size:
                truncate_file(disk, queue.file, queue.file.acknowledged_size, next_number(), is_anew=is_anew)
        if is_anew:
            disk.sync_folder(resources.folder)  # or what was answered with an error might come back
        self.is_copied = is_anew

    def _truncate_unacknowledged(self) -> None:
        """Take from all files what is not to be kept, as far as that goes without a sync.

        Whoever waits is told next that it did not happen; so it must not be found if the process ends before a sync
        of the copies works, which may be never.
        """
        disk = self._resources.disk
        for info, unsynced in self.unsynced.items():
            path = self._resources.path(info.file_name)
            if not unsynced.acknowledged_size:
                with suppress(OSError):
                    disk.erase(path)
            elif unsynced.acknowledged_size < info.size:
                file = AppendFile(disk, path, info.size)
                truncate_if_possible(file, unsynced.acknowledged_size)
                file.close()
        for queue in self.readers.values():
            if queue.file.acknowledged_size != queue.file.size:
                truncate_if_possible(queue.file, queue.file.acknowledged_size)
                queue.file.close()

    def close_files(self) -> None:
        """Give the descriptors back."""
        if self._current is not None:
            self._resources.open_files.close(self._current[1])
        for queue in self.readers.values():
            self._resources.open_files.close(queue.file)

    # Reading.

    def file_with(self, item_id: int) -> WriterFile | None:
        """The file where that item stands, or the next one that there is; None if none is written."""
        index = bisect_left(self.files, item_id, key=attrgetter("last_id"))
        return self.files[index] if index < len(self.files) else None

    def fill_from_pending(self, queue: ScrollQueue) -> None:
        """Take into the window of a reader what is not written yet."""
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
        """What there is for a reader from its `next_id` on. Raises OSError."""
        after_id = max(queue.next_id - 1, queue.done.head)
        counts = count_remaining(queue.reader, after_id, queue.done.ranges(), self.files, self.open_file)
        for item_id, record in enumerate(self._pending, self.written_id + 1):
            target = self._pending_targets.get(item_id)
            is_given = target is None or target.has(queue.reader)
            if item_id >= queue.next_id and is_given and item_id not in queue.done:
                counts = counts.plus(Counts(1, data_bytes(record)))
        return counts

    def open_file(self, file_name: bytes) -> FileReader:
        """One of its files, open to be read. Raises OSError."""
        return FileReader(self._resources.disk, self._resources.path(file_name))

    def read_range(
        self, queue: ScrollQueue, first_id: int, end_id: int, max_bytes: int
    ) -> Deferred[list[tuple[int, Item]]]:
        """The items of a reader with these ids, read in a thread."""
        files = [
            (file.file_name, file.before(first_id).offset, file.size)
            for file in self.files
            if file.last_id >= first_id and file.first_id < end_id
        ]
        reading = self._resources.jobs.run(self._read_range, files, queue.reader, first_id, end_id, max_bytes)
        return reading.addErrback(self._cannot_be_read)

    def end_of(self, first_id: int, max_items: int) -> int:
        """Where so many safe items end, from that id on: ids that no file has are passed over before them."""
        file = self.file_with(first_id)
        first_there = self.safe_id + 1 if file is None else max(first_id, file.first_id)
        return first_id if first_there > self.safe_id else min(first_there + max_items, self.safe_id + 1)

    def _cannot_be_read(self, failure: Failure) -> NoReturn:
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

    # Figures.

    @property
    def bytes(self) -> int:
        """Its writer files together."""
        return sum(file.size for file in self.files) + sum(self.obsolete_files.values())

    def bytes_behind(self, head: int) -> int:
        """Those of its writer files that hold something behind that id."""
        return sum(file.size for file in self.files if file.last_id > head)

    @property
    def stats(self) -> Mapping[str, int]:
        """Its own figures."""
        return {
            "logsize": self.files[-1].size if self.files else 0,
            "journal_rewrites": 0,
            "journal_rotations": self.rotations,
            "journal_bytes": self.bytes,
            "journal_files": len(self.files) + len(self.obsolete_files),
            "journal_repaired_bytes": self.repaired_bytes,
        }
