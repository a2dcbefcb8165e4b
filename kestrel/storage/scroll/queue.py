"""One queue kept in a scroll: a reader of the journal that a parent and its children share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred
from zope.interface import implementer
from zope.interface.interface import InterfaceClass

from kestrel.config.model import QueueSettings
from kestrel.disk.append_file import AppendFile
from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.scroll.item_reader import ScrollItemsRead
from kestrel.scroll.reader_changes import ReaderChanges
from kestrel.scroll.reader_file import ReaderState, encode_state, sealed
from kestrel.scroll.records import Held, data_bytes, decode_put, id_of
from kestrel.scroll.writer_file import NO_ITEMS, Counts
from kestrel.scroll.writer_index import HintMismatch
from kestrel.storage.interfaces import IItemRanges, IQueueStorage
from kestrel.storage.scroll.ranges import ItemRanges
from kestrel.storage.total_memory import ITEM_BYTES, MemoryLimit, MemoryShare
from kestrel.storage.window import Window

WINDOW_BYTES: Final = 256 * 1024
WINDOW_ITEMS: Final = 4096
"""No more of a queue is in memory than these, its open reads, and one item."""


class Journal(Protocol):
    """What a reader asks of the journal that it reads (`kestrel.storage.scroll.journal.ScrollJournal`)."""

    memory_limit: MemoryLimit
    safe_id: int

    @property
    def last_id(self) -> int:
        """The id of the last item, written or not."""

    @property
    def stats(self) -> Mapping[str, int]:
        """Its own figures."""

    def fail(self, error: Exception) -> QueueFailed:
        """One of its files cannot be read as it should: all of its queues are dead. Returns what to tell."""

    def count_remaining_for(self, queue: Any) -> Counts:
        """What there is for a reader from its `next_id` on. Raises OSError."""

    def bytes_behind(self, head: int) -> int:
        """Those of its writer files that hold something behind that id."""

    def read_range(self, queue: Any, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """The items of a reader with these ids, read in a thread."""

    def end_of(self, first_id: int, max_items: int) -> int:
        """Where so many safe items end, from that id on."""


@implementer(IQueueStorage)
class ScrollQueue(Window):
    """A head, what is done beyond it, and a small window of what comes next (`IQueueStorage`, `IItemRanges`).

    Everything up to `done.head` is done. The items from there to `next_id` are done, open, or in the window; those from
    `next_id` on are *behind* it: in the files alone, or not written yet. What is for other readers counts as done.
    """

    def __init__(
        self,
        name: bytes,
        reader: bytes,
        settings: QueueSettings,
        journal: Journal,
        state: ReaderState,
        file: AppendFile,
        counts: Counts,
    ) -> None:
        super().__init__()
        self.name = name
        self.reader = reader
        """What it is called in the writer files."""
        self.settings = settings
        self.journal: Any = journal
        """What its storage knows it by,"""
        self._journal = journal
        """and what it asks of it."""
        self.done = state.done
        self.held = state.held
        """What somebody reads by ids: kept until they release it, done or not."""
        self.file = file
        self.memory = MemoryShare(journal.memory_limit)
        self.is_deleted = False
        self.replayed_items = self.items = counts.items
        self.bytes = counts.bytes
        self.behind_items, self.behind_bytes = counts
        self.next_id = state.done.head + 1
        self.last_id = 0
        """Of the last item that was put, as long as this object lives."""
        self.file_position = b"", 0
        """The name of a writer file and an offset: the item `next_id` does not stand before it in that file."""
        self.generation = 0
        """Another one when items were dropped: what was being read then does not count."""
        self._changes = ReaderChanges(state.done.head)
        self.written_head = state.done.head
        """The head that is in the file,"""
        self._written_held = state.held
        """and what is held."""
        self.synced_done_id = self.written_done_id
        """The same as a sync is known to have reached it."""
        self.read_more: Callable[[], Deferred[None] | None] = lambda: None
        """Brings what is behind into the window: None if that is done, else fires when some of it is."""
        self._errors = state.errors
        self.compacted_bytes = 0
        """The size that its file had when it was written anew."""
        self._checkpoint_head = state.done.head
        """The head in the checkpoint that is being written."""
        self._has_skipped = False
        """Whether some of what is done is for others, which its file need not say, but a checkpoint does."""

    def __conform__(self, interface: InterfaceClass) -> Any:
        """Its ids are durable, so it has ranges (`IItemRanges`)."""
        return ItemRanges(self) if interface is IItemRanges else None

    # Items in.

    def put(self, record: bytes, item_id: int, size: int) -> None:
        """One more item at the tail: its PUT record, its id, and how much data it has."""
        if not self.behind_items:
            self._skip_to(item_id)
        if item_id == self.next_id and self.has_room:
            self._records.append(record)
            self.next_id = item_id + 1
        else:
            self.behind_items += 1
            self.behind_bytes += size
        self.items += 1
        self.bytes += size
        self.last_id = item_id

    def _skip_to(self, item_id: int) -> None:
        """What there is between `next_id` and that one is for others."""
        if item_id > self.next_id:
            self.done.add(self.next_id, item_id - 1)
            self.next_id = item_id
            self._has_skipped = True

    # Items out.

    def _decode(self, record: bytes) -> Item:
        item = decode_put(record)
        item.errors = self._errors.get(item.id, item.errors)
        return item

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head; as an open read when `opened`."""
        item = super().take(opened)
        if item is not None and not opened:
            self._finished(item.id)
        return item

    def confirm(self, xids: Sequence[int]) -> int:
        """End open reads; returns how many of them were open."""
        self.check()
        confirmed = [self._open[xid].id for xid in dict.fromkeys(xids) if xid in self._open]
        for xid in xids:
            self.finish(xid)
        for item_id in confirmed:
            self._finished(item_id)
        return len(confirmed)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head; xids[0] is the next one taken."""
        returned = [self._open[xid] for xid in xids if xid in self._open]
        super().put_back(xids, failed)
        if failed:
            for item in returned:
                self._errors[item.id] = item.errors
                self._changes.set_errors(item.id, item.errors)

    def clear(self) -> None:
        """Drop every item that is not an open read."""
        self.check()
        self._drop_to(self._journal.last_id + 1, (item.id for item in self._open.values()))
        self.release_items()
        self.items = self.bytes = 0

    def _finished(self, item_id: int) -> None:
        self.done.add(item_id)
        self._changes.add_done(item_id, item_id, self.done.head)
        if self._errors:
            self._errors.pop(item_id, None)

    def _drop_to(self, end_id: int, kept: Any) -> None:
        """All below that id is done, but for these ids; nothing below it is behind the window any more."""
        kept_ids = sorted(item_id for item_id in kept if item_id < end_id)
        first = self.done.head + 1
        for item_id in (*kept_ids, end_id):
            if first < item_id:
                self.done.add(first, item_id - 1)
                self._changes.add_done(first, item_id - 1, self.done.head)
            first = item_id + 1
        remaining = set(kept_ids)
        self._errors = {each: errors for each, errors in self._errors.items() if each >= end_id or each in remaining}
        if end_id > self.next_id:
            self.next_id = end_id
            self.generation += 1
            try:
                counts = self._journal.count_remaining_for(self) if end_id <= self._journal.last_id else NO_ITEMS
            except (OSError, HintMismatch) as error:
                raise self._journal.fail(error) from error
            self.behind_items, self.behind_bytes = counts
            self.skip_items_of_others()

    # Ranges of ids.

    @property
    def released_id(self) -> int:
        """The last id that nobody who reads by ids may ask for any more."""
        if self.held is not None:
            return self.held.head
        self.skip_items_of_others()
        return self.done.head

    def hold(self, by: bytes | None) -> None:
        """Keep for them what is not done, until they release it; None: keep nothing but for the queue itself."""
        self.check()
        self.held = None if by is None else Held(by, self.released_id)
        self._changes.set_held(self.held)

    def end_of(self, first_id: int, max_items: int) -> int:
        """Where so many of its safe items end, from that id on (`IItemRanges.end_of`)."""
        return self._journal.end_of(first_id, max_items)

    @property
    def safe_id(self) -> int:
        """The last item of its journal that is as safe as was promised."""
        return self._journal.safe_id

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Its items with these ids, done or not (`IItemRanges.read_range`)."""
        self.check()
        return self._journal.read_range(self, first_id, end_id, max_bytes)

    def release(self, end_id: int) -> None:
        """All below that id is done, open or not (`IItemRanges.release`)."""
        self.check()
        end_id = min(end_id, self._journal.last_id + 1)
        if end_id > self.done.head + 1:
            self._remove_below(end_id)
        if self.held is not None and self.held.head < end_id - 1:
            # Behind that: what a crash has left of a release can be released again.
            self.held = self.held._replace(head=end_id - 1)
            self._changes.set_held(self.held)

    def _remove_below(self, end_id: int) -> None:
        for xid in [xid for xid, item in self._open.items() if item.id < end_id]:
            self.finish(xid)
        kept_front = [item for item in self._front if item.id >= end_id]
        kept_records = [record for run in self._records.first(len(self._records)) for record in run]
        kept_records = [record for record in kept_records if id_of(record) >= end_id]
        self.release_items()
        self._front.extend(kept_front)
        self._front_with_errors = sum(item.errors > 0 for item in kept_front)
        self._records.extend(kept_records)
        self._drop_to(end_id, ())
        self.items = len(kept_front) + len(kept_records) + self.behind_items
        window_bytes = sum(len(item.data) for item in kept_front) + sum(map(data_bytes, kept_records))
        self.bytes = window_bytes + self.behind_bytes

    # What lies behind the window.

    @property
    def mem_bytes(self) -> int:
        """The data of the window."""
        return self.bytes - self.behind_bytes

    @property
    def mem_items(self) -> int:
        """How many items are in the window."""
        return self.items - self.behind_items

    @property
    def room_bytes(self) -> int:
        """How much more data the window is to hold."""
        limit = self._journal.memory_limit
        if limit.most_bytes is not None and limit.is_reached:
            return 0
        return min(WINDOW_BYTES, self.settings.max_memory_size_bytes) - self.bytes + self.behind_bytes

    @property
    def has_room(self) -> bool:
        """Whether one more item is to come into memory."""
        return self.items - self.behind_items < WINDOW_ITEMS and self.room_bytes > 0

    def fill(self) -> Deferred[None] | None:
        """None, or if the head must be read from a file a Deferred."""
        self.check()
        if self.has_head or not self.behind_items:
            return None
        return self.read_more()

    def append_read_items(self, read: ScrollItemsRead) -> None:
        """Items that were read come into the window; those between them are not for this reader."""
        records = read.records
        if records and id_of(records[0]) <= self.done.last:  # a restart finds that some of what lies ahead is done
            records = [record for record in records if id_of(record) not in self.done]
        for record in records:
            item_id = id_of(record)
            self._skip_to(item_id)
            self.next_id = item_id + 1
        self._records.extend(records)
        self.behind_items -= len(records)
        self.behind_bytes -= sum(map(data_bytes, records))
        self._skip_to(read.next_id)
        self.skip_items_of_others()

    @property
    def memory_bytes(self) -> int:
        """The memory that its items take."""
        return self.mem_bytes + self.open_bytes + ITEM_BYTES * (self.mem_items + len(self._open))

    def report_memory(self) -> None:
        """Say how much memory its items take."""
        self.memory.set_bytes(self.memory_bytes)

    def skip_items_of_others(self) -> None:
        """If nothing is behind the window, all that is there is for others."""
        if not self.behind_items:
            self._skip_to(self._journal.last_id + 1)

    # Its reader file.

    def take_changes(self) -> bytes:
        """Return the records of what was done since the last call, sealed, or nothing if nothing was done."""
        changes = self._changes.take(self.done.head)
        self.written_head, self._written_held = self._changes.head, self.held
        return sealed(changes) if changes else b""

    @property
    def has_changes(self) -> bool:
        """Whether something is done that its file does not say."""
        return self._has_skipped or self._changes.are_pending(self.done.head)

    @property
    def has_unwritten(self) -> bool:
        """Whether something was done to it that is not written."""
        return self._changes.are_pending(self._changes.head)

    @property
    def written_done_id(self) -> int:
        """Everything up to that id is needed no more, as its file says."""
        held = self._written_held
        return self.written_head if held is None else min(self.written_head, held.head)

    def checkpoint(self) -> bytes:
        """A whole reader file that says how far it is now."""
        return encode_state(self.state)

    def begin_checkpoint(self) -> bytes:
        """The same, to take the place of its file: until `end_checkpoint` nothing may be written to that.

        Nothing may have been done that is not written.
        """
        self.skip_items_of_others()
        self._checkpoint_head, self._has_skipped = self.done.head, False
        return self.checkpoint()

    def end_checkpoint(self, size: int) -> None:
        """That checkpoint, of so many bytes, has taken the place of its file."""
        self._changes.head_written(self._checkpoint_head)
        self.written_head = max(self.written_head, self._checkpoint_head)
        self.end_compaction(size)

    def end_compaction(self, size: int) -> None:
        """Its file says the same in so many bytes."""
        self.file.replaced(size)
        self.compacted_bytes = size
        self.synced_done_id = self.written_done_id

    def give_up_checkpoint(self) -> None:
        """Its file is as it was."""
        self._has_skipped = True

    @property
    def state(self) -> ReaderState:
        """How far it is."""
        return ReaderState(self.done, self._errors, held=self.held)

    @property
    def is_drained(self) -> bool:
        """Whether there is nothing in it, and nothing kept."""
        return not (self.items or self._open) and (self.held is None or self.held.head >= self._journal.last_id)

    @property
    def disk_bytes(self) -> int:
        """The writer files that it has not done with, which it may share, and its reader file."""
        done_id = self.done.head if self.held is None else self.held.head
        return self._journal.bytes_behind(done_id) + self.file.size

    @property
    def stats(self) -> Mapping[str, int]:
        """The figures of its journal, how much is done beyond its head, and what is kept for who reads by ids."""
        memory_bytes = 0 if self.held is None else self._journal.bytes_behind(self.held.head)
        return {**self._journal.stats, "scroll_done_ranges": len(self.done), "scroll_held_bytes": memory_bytes}


