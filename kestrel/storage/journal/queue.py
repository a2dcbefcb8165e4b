"""One queue kept in Kestrel's journal: its window in memory, each change as a record to be written, and what lies
behind the window, on disk alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Final

from twisted.internet.defer import Deferred
from zope.interface import classImplements

from kestrel.config.model import QueueSettings
from kestrel.errors import ItemTooLarge, StorageRefused
from kestrel.item import Item
from kestrel.journal.compaction_policy import JournalSizes
from kestrel.journal.history import History
from kestrel.journal.item_reader import JournalItemsRead
from kestrel.journal.records import (
    ADDX_HEADER_BYTES,
    MAX_DATA_BYTES,
    REMOVE_RECORD,
    XID_RECORD_BYTES,
    added_item,
    encode_confirm,
    encode_continue,
    encode_continued_item,
    encode_open,
    encode_put_back,
)
from kestrel.journal.rewrite import ERRORS_BYTES, Boundary, ReadBehindItems, ReplacementRecords
from kestrel.journal.segments import SegmentLog
from kestrel.journal.writer import JournalWriter
from kestrel.storage.disk_reserve import DiskReserve
from kestrel.storage.interfaces import IContinue, IQueueStorage
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit, MemoryShare
from kestrel.storage.window import Window

UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL: Final = 1 << 20
"""While the server's memory is full, a queue whose commits wait for the disk takes no more than that."""

MAX_BOUNDARIES: Final = 1_000_000
"""Open reads, items put back, and error counts, at all boundaries together. Beyond that, packs have to wait."""


class JournalQueue(Window):
    """A window whose changes are recorded (`IQueueStorage`, `IContinue`). The storage writes the records at commit.

    Up to maxMemorySize of data is in the window. Items that come when it is full stand in the journal alone, *behind*
    it, and so do all that come after them, until the last of them has been read forward.
    """

    def __init__(
        self, name: bytes, settings: QueueSettings, writer: JournalWriter, memory: MemoryLimit | None = None
    ) -> None:
        super().__init__()
        self._memory_limit = memory or MemoryLimit()
        self.memory = MemoryShare(self._memory_limit)
        self.name = name
        self.settings = settings
        self.writer = writer
        self.history = History(name)
        self.boundaries: list[Boundary] = []
        """Of rotated files, in replay order: of the newest that has been read forward, and of those after it."""
        self.segments: SegmentLog | None = None
        """Knows the boundaries after a restart; None if its files are only read."""
        self.max_boundaries = MAX_BOUNDARIES
        self.refusal: str | None = None
        """None, or why this queue takes no put now."""
        self.disk_reserve: DiskReserve | None = None
        """Knows why no queue of its storage takes a put now."""
        self.replayed_items = 0
        self.repaired_bytes = 0
        """What was set aside when it was loaded."""
        self.now_ms = 0
        """The add time of items whose record has none."""
        self.is_deleted = False
        self.behind_items = 0
        self.behind_bytes = 0
        self.behind_offset = 0
        """Where in the history reading goes on,"""
        self.behind_skip = 0
        """with the item after so many others."""
        self.behind_generation = 0
        """Another one when items were dropped or files replaced: what was being read then does not count."""
        self.read_more: Callable[[], Deferred[None]] | None = None
        """Reads items forward; None while the queue is being loaded."""
        self.rewrites = self.packs = self.rotations = 0
        self._end = 0
        """The offset in the history of what will be recorded next."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._pending_seen = (0, 0)
        """How many of them, of how many bytes, stand in front of what is read forward next."""

    # What is done is recorded.

    def append(self, record: bytes, offset: int | None = None) -> None:
        """One more item at the tail, as its ADDX record, which stands at that offset, or at the end of the history."""
        if self.behind_items or self.is_window_full:
            self._append_behind(record, self._end if offset is None else offset)
        else:
            self._records.append(record)
        self.items += 1
        self.bytes += len(record) - ADDX_HEADER_BYTES

    def extend(self, records: list[bytes], offset: int) -> None:
        """Items at the tail, as records one behind the other, the first of them at that offset."""
        data_bytes = sum(map(len, records)) - len(records) * ADDX_HEADER_BYTES
        if self.behind_items:
            self.behind_items += len(records)
            self.behind_bytes += data_bytes
        elif self.bytes + data_bytes < self.settings.max_memory_size_bytes and not self._memory_limit.is_reached:
            self._records.extend(records)
        else:
            for record in records:
                self.append(record, offset)
                offset += len(record)
            return
        self.items += len(records)
        self.bytes += data_bytes

    def _append_behind(self, record: bytes, offset: int) -> None:
        if not self.behind_items:
            self.behind_offset, self.behind_skip = offset, 0
        self.behind_items += 1
        self.behind_bytes += len(record) - ADDX_HEADER_BYTES

    def _record(self, records: bytes) -> None:
        self._pending.append(records)
        self._pending_bytes += len(records)
        self._end += len(records)

    def check_put(self, size: int) -> None:
        """Raise the `StorageError` why it takes no item of so many bytes now, if there is one."""
        if self.disk_reserve is not None and self.disk_reserve.refusal is not None:
            raise StorageRefused(self.disk_reserve.refusal)
        if size > MAX_DATA_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_DATA_BYTES} bytes")
        if self.failure is not None:
            self.check()
        if self.refusal is not None:
            raise StorageRefused(self.refusal)
        if self._memory_limit.is_reached and self.unwritten_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL:
            raise StorageRefused("the server's memory is full, and the disk is slow")

    def put(self, record: bytes) -> None:
        """Append an item, given as its record, which may be shared with other queues."""
        self.append(record)
        self._record(record)

    def continue_(self, xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """End that open read and append an item, in one record."""
        self.check_put(len(data))
        record = encode_continued_item(data, add_ms, expiry_ms)
        self.finish(xid)
        self.append(record)
        self._record(encode_continue(xid, record))
        if self._memory_limit.most_bytes is not None:  # the commit may be a while away
            self.report_memory()

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head; as an open read when `opened`."""
        item = super().take(opened)
        if item is not None:
            self._record(encode_open(item.xid) if opened else REMOVE_RECORD)
        return item

    def confirm(self, xids: Sequence[int]) -> int:
        """End open reads; returns how many of them were open."""
        self.check()
        confirmed = [xid for xid in xids if self.finish(xid)]
        for xid in confirmed:
            self._record(encode_confirm(xid))
        return len(confirmed)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head; xids[0] is the next one taken."""
        self.check()
        for xid in reversed(xids):
            item = self._open.get(xid)
            if item is not None:
                errors = None if failed else item.errors
                self.push_back(xid, errors)
                self._record(encode_put_back(xid, errors))

    def clear(self) -> None:
        """Drop every item that is not an open read: one REMOVE for each, as one run of bytes."""
        self.check()
        if self.items:
            self._record(REMOVE_RECORD * self.items)
        super().clear()
        self._first_id += self.behind_items
        self.behind_items = self.behind_bytes = 0
        self.behind_generation += 1

    # What lies behind the window.

    @property
    def mem_bytes(self) -> int:
        """The data of the window."""
        return self.bytes - self.behind_bytes

    @property
    def next_behind_id(self) -> int:
        """The id of the next item to be read forward."""
        return self._first_id + len(self._records)

    @property
    def written_end(self) -> int:
        """The offset in the history up to which it is written."""
        return self._end - self._pending_bytes

    @property
    def is_window_full(self) -> bool:
        """Whether no more items are to come into memory, of this queue or of any."""
        return self.mem_bytes >= self.settings.max_memory_size_bytes or self._memory_limit.is_reached

    @property
    def room_bytes(self) -> int:
        """How much more data the window is to hold."""
        return 0 if self._memory_limit.is_reached else self.settings.max_memory_size_bytes - self.mem_bytes

    @property
    def memory_bytes(self) -> int:
        """The memory that its items take."""
        window_bytes = super().memory_bytes - self.behind_bytes - self.behind_items * ITEM_BYTES
        return window_bytes + (self._pending_bytes if self.behind_items else 0)  # else they are those of the window

    def report_memory(self) -> None:
        """Say how much memory its items take. On the reactor's thread, or while nothing is served yet."""
        self.memory.set_bytes(self.memory_bytes)

    @property
    def is_drained(self) -> bool:
        """Whether there is nothing in it, and one file that says so."""
        return not (self.items or self._open or self._pending or self.history.rotated)

    def fill(self) -> Deferred[None] | None:
        """None, or if the head must be read from a file a Deferred."""
        self.check()
        if not self.behind_items or self.has_head:
            return None
        if self.behind_offset >= self.written_end:
            self._read_pending()
            return None
        return None if self.read_more is None else self.read_more()

    def _read_pending(self) -> None:
        """Take into the window what stands behind it and is not even written yet."""
        seen, seen_bytes = self._pending_seen
        written_end = self.written_end
        for record in islice(self._pending, seen, None):
            if self.has_head and (self.room_bytes <= 0 or not self.behind_items):
                break
            item = added_item(record)
            if item is not None and written_end + seen_bytes >= self.behind_offset:
                self.append_read_items(JournalItemsRead([item], written_end + seen_bytes + len(record), 0))
            seen, seen_bytes = seen + 1, seen_bytes + len(record)
        self._pending_seen = seen, seen_bytes

    def append_read_items(self, read: JournalItemsRead) -> None:
        """Items that were read come into the window."""
        self._records.extend(read.records)
        self.behind_items -= len(read.records)
        self.behind_bytes -= sum(map(len, read.records)) - len(read.records) * ADDX_HEADER_BYTES
        self.behind_offset, self.behind_skip = read.offset, read.skip

    # What the storage does with it.

    def history_loaded(self, end: int) -> None:
        """The history that was replayed ends there."""
        self._end = end

    def take_pending(self) -> bytes:
        """All that was recorded since the last call."""
        pending, self._pending = self._pending, []
        self._pending_bytes, self._pending_seen = 0, (0, 0)
        return pending[0] if len(pending) == 1 else b"".join(pending)

    @property
    def unwritten_bytes(self) -> int:
        """What was recorded and is not written."""
        return self._pending_bytes

    @property
    def has_pending(self) -> bool:
        """Whether something was recorded that is not written."""
        return bool(self._pending)

    def boundary(self) -> Boundary:
        """What is in the queue now, as the end of a file that has no number yet: 0."""
        counted = self._items_with_errors
        held = chain(self._open.values(), self._front) if counted else ()
        return Boundary(
            0,
            self._end,
            {xid: item.id for xid, item in self._open.items()},
            [item.id for item in self._front],
            {item.id: item.errors for item in held if item.errors},
            counted,
            self._first_id,
            self.next_behind_id + self.behind_items,
        )

    @property
    def _items_with_errors(self) -> int:
        """How many items are written with their errors when they are written anew."""
        return self.open_with_errors + self.front_to_last_with_errors

    def replacement(self, boundary: Boundary) -> ReplacementRecords:
        """A snapshot of what the file holds that replaces all up to that boundary."""
        taken = {item.id: item for item in (*self._open.values(), *self._front)}
        records = self._records.first(boundary.next_id - self._first_id)
        first_behind = self.next_behind_id
        behind_items = max(0, boundary.next_id - first_behind)
        behind_bytes = self.behind_bytes + behind_items * ADDX_HEADER_BYTES if behind_items else 0
        behind = ReadBehindItems(
            first_behind, behind_items, self.behind_offset, self.behind_skip, self.now_ms, behind_bytes
        )
        return ReplacementRecords(boundary, taken, self._first_id, records, behind)

    def replaced(self, replacement: ReplacementRecords) -> None:
        """That file has taken the place of all up to its boundary."""
        boundary = replacement.boundary
        self.writer.forget([span.file_name for span in self.history.rotated_up_to(boundary.number)])
        span = self.history.replace_up_to(boundary.number, replacement.size)
        self.boundaries = [each for each in self.boundaries if each.number >= boundary.number]
        if self.behind_items and self.behind_offset < span.end:
            offset, self.behind_skip = replacement.offset_of(self.next_behind_id)
            self.behind_offset = span.start + offset
            self.behind_generation += 1
        if self.segments is not None:
            self.segments.packed(boundary)
            self.segments.replace(self._known_segments())

    def _known_segments(self) -> list[tuple[Boundary, int]]:
        """The boundary and the size of each rotated file, up to the first whose boundary is not remembered."""
        boundaries = {each.number: each for each in self.boundaries}
        known = []
        for span in self.history.rotated:
            boundary = boundaries.get(span.number)
            if boundary is None:
                break
            known.append((boundary, span.end - span.start))
        return known

    def journal_state(self, ms_since_rewrite: int | None) -> JournalSizes:
        """What decides whether its files are rewritten or packed."""
        read_bytes, packed_bytes = self._pack_of(self.last_read_boundary()) if self.behind_items else (0, 0)
        return JournalSizes(
            self.disk_bytes,
            bool(self.history.rotated),
            self.items,
            self.live_bytes,
            read_bytes,
            packed_bytes,
            ms_since_rewrite,
        )

    def last_read_boundary(self) -> Boundary | None:
        """The newest that nothing before waits to be read forward."""
        count = len(self.boundaries)
        if self.behind_items:
            count = bisect_right(self.boundaries, self.behind_offset, key=attrgetter("end"))
        return self.boundaries[count - 1] if count else None

    def _pack_of(self, boundary: Boundary | None) -> tuple[int, int]:
        """How many bytes a pack up to there replaces, and how many it takes at most."""
        if boundary is None or not self.history.rotated:
            return 0, 0
        has_some = boundary.next_id > self._first_id or bool(self._front)
        window_bytes = self.mem_bytes if has_some else 0
        packed_bytes = boundary.most_bytes + window_bytes + self.open_bytes
        return boundary.end - self.history.rotated[0].start, packed_bytes

    def smallest_pack(self, room_bytes: int) -> Boundary | None:
        """For a full disk: the first boundary of which a pack has room, and frees an eighth of what it newly covers."""
        if not self.history.rotated:
            return None
        first = self.history.rotated[0]
        read = bisect_right(self.boundaries, self.behind_offset, key=attrgetter("end"))
        for boundary in self.boundaries[:read]:
            read_bytes, packed_bytes = self._pack_of(boundary)
            added_bytes = boundary.end - (first.end if boundary.end > first.end else first.start)
            if packed_bytes <= room_bytes and 8 * (read_bytes - packed_bytes) >= added_bytes:
                return boundary
        return None

    def rotate(self, boundary: Boundary, *, begins_file: bool = True, is_kept: bool = True) -> Boundary:
        """Make the current file, which ends at `boundary`, a rotated one; return the boundary with its number.

        `begins_file`: create the new current file as well; otherwise the next write does. `is_kept` is False if the end
        of the rotated file may yet be cut. Raises OSError, and nothing has changed.
        """
        size = self.writer.size
        boundary = boundary._replace(number=self.writer.rotate() if begins_file else self.writer.retire_current())
        self.history.rotate(boundary.number, size)
        self.add_boundary(boundary)
        if self.segments is not None and is_kept:
            self.segments.add(boundary, size)
        return boundary

    def drop_files(self) -> None:
        """Delete its files, for `erase_deleted` to erase. The queue must hold nothing. Raises OSError."""
        self.writer.drop_files()
        if self.segments is not None:
            self.segments.erase()
            self.segments.packed(self.boundary())
        self.history = History(self.name)
        self.boundaries = []
        self.history_loaded(0)

    def add_boundary(self, boundary: Boundary) -> None:
        """Remember the end of a rotated file."""
        read = self.last_read_boundary()
        kept = [each for each in self.boundaries if read is None or each.end >= read.end]
        # Of two files of one number, one written with leading zeros, a pack replaces both.
        self.boundaries = [*(each for each in kept if each.number != boundary.number), boundary]
        if sum(each.id_count for each in self.boundaries) > self.max_boundaries:
            self.boundaries = self.boundaries[-1:]

    @property
    def disk_bytes(self) -> int:
        """The journal's files together."""
        return self.history.rotated_bytes + self.writer.size

    @property
    def live_bytes(self) -> int:
        """What a rewrite would write."""
        opened = self.open_bytes + self.open_reads * (ADDX_HEADER_BYTES + XID_RECORD_BYTES)
        return self.bytes + self.items * ADDX_HEADER_BYTES + opened + self._items_with_errors * ERRORS_BYTES

    @property
    def stats(self) -> Mapping[str, int]:
        """The journal's own figures."""
        return {
            "logsize": self.writer.size,
            "journal_rewrites": self.rewrites,
            "journal_rotations": self.rotations,
            "journal_packs": self.packs,
            "journal_bytes": self.disk_bytes,
            "journal_repaired_bytes": self.repaired_bytes,
        }


classImplements(JournalQueue, IQueueStorage, IContinue)  # a class with a decorator is not compiled
