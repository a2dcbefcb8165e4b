"""A queue of the journal storage: the items in memory, the items only on disk, and the records of its changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Final

from zope.interface import classImplements

from kestrel.config.model import QueueSettings
from kestrel.errors import ItemTooLarge, StorageRefused
from kestrel.item import Item
from kestrel.journal.compaction_policy import JournalSizes
from kestrel.journal.fileset import History
from kestrel.journal.item_reader import JournalItemsRead
from kestrel.journal.records import (
    ADDX_HEADER_BYTES,
    MAX_DATA_BYTES,
    REMOVE_RECORD,
    XID_RECORD_BYTES,
    ItemEncoder,
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
from kestrel.storage.folder_resources import DiskReserve
from kestrel.storage.interfaces import IContinue, IQueueStorage
from kestrel.storage.log.read_ahead import LogQueue
from kestrel.storage.total_memory import MemoryLimit

UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL: Final = 1 << 20
"""Unwritten bytes of a queue above which it refuses puts while maxTotalMemory is reached."""

MIN_CHECKPOINT_BYTES: Final = 64 * 1024
"""Minimum size of a current file for a checkpoint at a start, and of the records since the last one at a stop."""

MAX_BOUNDARIES: Final = 1_000_000
"""Limit of the open reads, returned items and error counts in all boundaries of a queue. Beyond it packs wait."""


class JournalQueue(LogQueue):
    """A queue that records its changes (`IQueueStorage`, `IContinue`). The storage writes the records at each commit.

    The window has up to maxMemorySize of data. Items that arrive while it is full are only in the journal, *behind* the
    window. So are all later items, until the last item behind the window has been read.
    """

    def __init__(
        self, name: bytes, settings: QueueSettings, writer: JournalWriter, memory: MemoryLimit | None = None
    ) -> None:
        super().__init__(name, settings, memory or MemoryLimit())
        self.writer = writer
        self.encoder = ItemEncoder()
        self.history = History(name)
        self.boundaries: list[Boundary] = []
        """Boundaries of rotated files in replay order: the last one that has been read completely, and later ones."""
        self.segments: SegmentLog | None = None
        """Log that keeps the boundaries for the next start, or None if the files are only read."""
        self.max_boundaries = MAX_BOUNDARIES
        self.refusal: str | None = None
        """Reason why this queue refuses puts now, or None."""
        self.disk_reserve: DiskReserve | None = None
        """Reserve whose `refusal` is the reason why all queues of the storage refuse puts now."""
        self.repaired_bytes = 0
        """Bytes that repairs set aside when the queue was loaded."""
        self.now_ms = 0
        """Add time of items whose record has none."""
        self.behind_offset = 0
        """Offset in the history at which the next read-behind begins."""
        self.behind_skip = 0
        """Number of items to skip from `behind_offset` on."""
        self.rewrites = self.packs = self.rotations = 0
        self._end = 0
        """Offset in the history of the next record."""
        self.checkpoint_offset = 0
        """Offset of the last checkpoint in the current file."""
        self.needs_checkpoint = False
        """True if the segment log has no state that a start can restore, because of a pack."""
        self._pending: list[bytes] = []
        self._loaded_pending = 0
        """Number of the first pending records, which the load wrote. No commit waits for them."""
        self.has_failed_sync = False
        """True if the load could not sync the files."""
        self._pending_seen = (0, 0)
        """Number and bytes of the pending records that `_read_pending` has passed."""

    # Changes, and their records.

    def append(self, record: bytes, offset: int | None = None) -> None:
        """Append an item, given as the ADDX record at `offset` of the history, by default at its end."""
        if self.behind_items or self.room_bytes <= 0:
            self._append_behind(record, self._end if offset is None else offset)
        else:
            self._records.append(record)
        self.items += 1
        self.bytes += len(record) - ADDX_HEADER_BYTES

    def extend(self, records: list[bytes], offset: int) -> None:
        """Append items, given as adjacent ADDX records that begin at `offset` of the history."""
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
        """Raise a `StorageError` if the queue refuses an item of `size` bytes now."""
        if self.disk_reserve is not None and self.disk_reserve.refusal is not None:
            raise StorageRefused(self.disk_reserve.refusal)
        if size > MAX_DATA_BYTES:
            raise ItemTooLarge(f"an item holds at most {MAX_DATA_BYTES} bytes")
        if self.failure is not None:
            self.check()
        if self.refusal is not None:
            raise StorageRefused(self.refusal)
        if self._pending_bytes > UNWRITTEN_BYTES_WHEN_MEMORY_IS_FULL and self._memory_limit.is_reached:
            raise StorageRefused("the server's memory is full, and the disk is slow")

    def put(self, record: bytes) -> None:
        """Append an item and record that. `record` is its ADDX record, which other queues may share."""
        self.append(record)
        # Without `_record`, because each put calls this.
        self._pending.append(record)
        self._pending_bytes += len(record)
        self._end += len(record)

    def continue_(self, xid: int, data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Confirm the open read `xid` and append an item, in one record."""
        self.check_put(len(data))
        record = encode_continued_item(data, add_ms, expiry_ms)
        self.finish(xid)
        self.append(record)
        self._record(encode_continue(xid, record))
        if self._memory_limit.most_bytes is not None:
            # The commit reports it too, but may be far away.
            self.report_memory()

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head, as an open read if `opened`. Return None if no item is in memory."""
        if self.failure is not None:
            self.check()
        item = self.pop_head()
        if item is None:
            return None
        if opened:
            self.open_as(item, self.next_xid())
            self._record(encode_open(item.xid))
        else:
            self._record(REMOVE_RECORD)
        return item

    def confirm(self, xids: Sequence[int]) -> int:
        """Confirm open reads. Return how many of them were open."""
        if self.failure is not None:
            self.check()
        confirmed = 0
        for xid in xids:
            if self.finish(xid):
                self._record(encode_confirm(xid))
                confirmed += 1
        return confirmed

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head; xids[0] becomes the head. `failed`: count an error for each item."""
        self.check()
        for xid in reversed(xids):
            item = self._open.get(xid)
            if item is not None:
                errors = None if failed else item.errors
                self.push_back(xid, errors)
                self._record(encode_put_back(xid, errors))

    def clear(self) -> None:
        """Drop every item that is not an open read, and record a REMOVE for each."""
        self.check()
        if self.items:
            self._record(REMOVE_RECORD * self.items)
        super().clear()
        self._first_id += self.behind_items
        self.behind_items = self.behind_bytes = 0
        self.behind_generation += 1

    # The window, and the items behind it.

    @property
    def next_behind_id(self) -> int:
        """Id of the first item behind the window."""
        return self._first_id + len(self._records)

    @property
    def written_end(self) -> int:
        """Offset in the history of the end of the written records."""
        return self._end - self._pending_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes of data that the window may still take."""
        # Without `mem_bytes`, because each put calls this.
        mem_bytes = self.bytes - self.behind_bytes
        return 0 if self._memory_limit.is_reached else self.settings.max_memory_size_bytes - mem_bytes

    @property
    def is_drained(self) -> bool:
        """True if the queue has no items, open reads, pending records or rotated files."""
        return not (self.items or self._open or self._pending or self.history.rotated)

    def read_pending(self) -> None:
        """Take items behind the window from the pending records, when all written items are in the window."""
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
        """Append items that were read from behind the window to it."""
        self._records.extend(read.records)
        self.behind_items -= len(read.records)
        self.behind_bytes -= sum(map(len, read.records)) - len(read.records) * ADDX_HEADER_BYTES
        self.behind_offset, self.behind_skip = read.offset, read.skip

    # Calls of the storage.

    @property
    def stem(self) -> bytes:
        """The first part of the names of its files."""
        return self.name

    @property
    def queues(self) -> Collection[JournalQueue]:
        """The queue itself, since it shares no file."""
        return (self,)

    def close_files(self) -> None:
        """Close the current file."""
        self.writer.close()

    def history_loaded(self, end: int) -> None:
        """Set the offset in the history of the next record."""
        self._end = end

    def load_ended(self) -> None:
        """Count the pending records as those of the load."""
        self._loaded_pending = len(self._pending)
        self.replayed_items = self.items

    def take_pending(self) -> bytes:
        """Return the records since the last call. From now on they count as written."""
        pending, self._pending = self._pending, []
        self._pending_bytes, self._pending_seen, self._loaded_pending = 0, (0, 0), 0
        return pending[0] if len(pending) == 1 else b"".join(pending)

    @property
    def sync_period_ms(self) -> int | None:
        """Value of syncJournal in milliseconds; 0 syncs each commit, None never syncs."""
        return self.settings.sync_journal_ms

    @property
    def has_pending(self) -> bool:
        """True if there are records to be written."""
        return bool(self._pending)

    @property
    def has_uncommitted(self) -> bool:
        """True if a client's changes are to be written."""
        return len(self._pending) > self._loaded_pending

    def boundary(self) -> Boundary:
        """Return the state of the queue now, as the boundary of a file that has no number yet."""
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
            self.bytes - sum(len(item.data) for item in self._front),
            self.last_xid,
        )

    def restore(self, boundary: Boundary, taken: Mapping[int, Item], behind_offset: int) -> None:
        """Set the state of this new queue to that at `boundary`.

        `taken` has the open reads and returned items, by id. All items after them are only on disk, and the first one
        is at `behind_offset` in the history.
        """
        for item_id in reversed(boundary.front):
            xid = self.next_xid()
            self.open_as(taken[item_id], xid)
            self.push_back(xid, taken[item_id].errors)
        for xid, item_id in boundary.open.items():
            self.open_as(taken[item_id], xid)
        self.last_xid = boundary.last_xid
        self._first_id = boundary.first_id
        self.behind_items = boundary.next_id - boundary.first_id
        self.behind_offset, self.behind_bytes = behind_offset, boundary.waiting_bytes
        self.items += self.behind_items
        self.bytes += self.behind_bytes

    @property
    def _items_with_errors(self) -> int:
        """Number of items that a rewrite writes with their error counts."""
        return self.open_with_errors + self.front_to_last_with_errors

    def replacement(self, boundary: Boundary) -> ReplacementRecords:
        """Return a snapshot of the records for a file that replaces all files up to `boundary`."""
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
        """Record that a new file has replaced all files up to its boundary."""
        boundary = replacement.boundary
        self.writer.forget([span.file_name for span in self.history.rotated_up_to(boundary.number)])
        span = self.history.replace_up_to(boundary.number, replacement.size)
        # The items that placeholders have replaced no longer count.
        kept = [each for each in self.boundaries if each.number >= boundary.number]
        self.boundaries = [each._replace(waiting_bytes=-1) for each in kept]
        if self.behind_items and self.behind_offset < span.end:
            offset, self.behind_skip = replacement.offset_of(self.next_behind_id)
            self.behind_offset = span.start + offset
            self.behind_generation += 1
        if self.segments is not None:
            self.segments.packed(boundary)
            self.segments.replace(self._known_segments())
            self.needs_checkpoint = self.disk_bytes >= MIN_CHECKPOINT_BYTES

    def _known_segments(self) -> list[tuple[Boundary, int]]:
        """Return the boundary and the size of each rotated file, up to the first file whose boundary is not known."""
        boundaries = {each.number: each for each in self.boundaries}
        known = []
        for span in self.history.rotated:
            boundary = boundaries.get(span.number)
            if boundary is None:
                break
            known.append((boundary, span.end - span.start))
        return known

    def journal_state(self, ms_since_rewrite: int | None) -> JournalSizes:
        """Return the sizes that the compaction policy needs."""
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
        """Return the last boundary before all items behind the window, or None."""
        count = len(self.boundaries)
        if self.behind_items:
            count = bisect_right(self.boundaries, self.behind_offset, key=attrgetter("end"))
        return self.boundaries[count - 1] if count else None

    def _pack_of(self, boundary: Boundary | None) -> tuple[int, int]:
        """Return how many bytes a pack up to `boundary` replaces, and how many it writes at most."""
        if boundary is None or not self.history.rotated:
            return 0, 0
        has_some = boundary.next_id > self._first_id or bool(self._front)
        window_bytes = self.mem_bytes if has_some else 0
        packed_bytes = boundary.most_bytes + window_bytes + self.open_bytes
        return boundary.end - self.history.rotated[0].start, packed_bytes

    def smallest_pack(self, room_bytes: int) -> Boundary | None:
        """Return the boundary of the smallest pack that fits into `room_bytes` and frees enough, or None.

        Enough is an eighth of the bytes that it replaces after the first rotated file, which may be the last pack.
        """
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
        """Rotate the current file, which ends at `boundary`. Return the boundary with the number of the file.

        `begins_file`: create the new current file now; otherwise the next write does. `is_kept` is False if the end of
        the rotated file may yet be cut. Raise OSError if nothing has changed.
        """
        size = self.writer.size
        boundary = boundary._replace(number=self.writer.rotate() if begins_file else self.writer.retire_current())
        self.history.rotate(boundary.number, size)
        self.checkpoint_offset, self.needs_checkpoint = 0, False
        self.add_boundary(boundary)
        if self.segments is not None and is_kept:
            self.segments.add(boundary, size)
        return boundary

    @property
    def needs_last_checkpoint(self) -> bool:
        """True at a stop if a checkpoint would save the next start some work. All records must be as safe as
        syncJournal requires.
        """
        writer = self.writer
        is_safe = not self._pending and (writer.is_synced or self.sync_period_ms is None)
        unlogged_bytes = writer.size - self.checkpoint_offset
        return is_safe and (self.needs_checkpoint or unlogged_bytes >= MIN_CHECKPOINT_BYTES)

    def add_checkpoint(self, boundary: Boundary) -> None:
        """Record in the segment log that the current file, which ends at `boundary` now, can be replayed from here."""
        self.checkpoint_offset, self.needs_checkpoint = self.writer.size, False
        if self.segments is not None:
            self.segments.add(boundary, self.writer.size)

    def drop_files(self) -> None:
        """Mark all files as deleted by one rename on disk, and continue without files. Raises OSError.

        The caller must make sure that the queue is empty, and call `erase_deleted` later to erase the files.
        """
        self.writer.drop_files()
        if self.segments is not None:
            self.segments.erase()
            self.segments.packed(self.boundary())
        self.history = History(self.name)
        self.boundaries = []
        self.checkpoint_offset, self.needs_checkpoint = 0, False
        self.history_loaded(0)

    def add_boundary(self, boundary: Boundary) -> None:
        """Remember the boundary of a rotated file, and forget those before the last one that has been read."""
        read = self.last_read_boundary()
        kept = [each for each in self.boundaries if read is None or each.end >= read.end]
        # A pack replaces all files of one number. There are two if one has leading zeros in its name.
        self.boundaries = [*(each for each in kept if each.number != boundary.number), boundary]
        if sum(each.id_count for each in self.boundaries) > self.max_boundaries:
            self.boundaries = self.boundaries[-1:]

    @property
    def disk_bytes(self) -> int:
        """Size of all files."""
        return self.history.rotated_bytes + self.writer.size

    @property
    def live_bytes(self) -> int:
        """Bytes that a rewrite would write."""
        opened = self.open_bytes + self.open_reads * (ADDX_HEADER_BYTES + XID_RECORD_BYTES)
        return self.bytes + self.items * ADDX_HEADER_BYTES + opened + self._items_with_errors * ERRORS_BYTES

    @property
    def stats(self) -> Mapping[str, int]:
        """Statistics of the journal, by name."""
        return {
            "logsize": self.writer.size,
            "journal_rewrites": self.rewrites,
            "journal_rotations": self.rotations,
            "journal_packs": self.packs,
            "journal_bytes": self.disk_bytes,
            "journal_repaired_bytes": self.repaired_bytes,
        }


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(JournalQueue, IQueueStorage, IContinue)
