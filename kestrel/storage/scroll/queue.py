"""A queue in a scroll, which is one reader of the journal that a parent and its children share. Its ranges of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred
from zope.interface import implementer
from zope.interface.interface import InterfaceClass

from kestrel.config.model import QueueSettings
from kestrel.disk.files import AppendFile
from kestrel.errors import QueueFailed
from kestrel.item import Item
from kestrel.scroll.item_reader import ScrollItemsRead
from kestrel.scroll.reader_file import ReaderChanges, ReaderState, encode_state, sealed
from kestrel.scroll.records import Held, data_bytes, decode_put, id_of
from kestrel.scroll.writer_file import NO_ITEMS, Counts
from kestrel.scroll.writer_index import HintMismatch
from kestrel.storage.interfaces import IItemRanges, IQueueStorage
from kestrel.storage.log.read_ahead import LogQueue
from kestrel.storage.total_memory import MemoryLimit

WINDOW_BYTES: Final = 256 * 1024
WINDOW_ITEMS: Final = 4096
"""Limits of a queue's window. One more item, and the open reads, may also be in memory."""


class Journal(Protocol):
    """The part of a journal that its readers use (`kestrel.storage.scroll.journal.ScrollJournal`)."""

    memory_limit: MemoryLimit
    safe_id: int

    @property
    def last_id(self) -> int:
        """Id of the last item, written or pending."""

    @property
    def stats(self) -> Mapping[str, int]:
        """Statistics of the journal, by name."""

    def fail(self, error: Exception) -> QueueFailed:
        """Fail all queues of the journal because a file cannot be read. Return the failure for clients."""

    def count_remaining_for(self, queue: Any) -> Counts:
        """Return the counts of a reader's items from its `next_id` on. Raises OSError."""

    def bytes_behind(self, head: int) -> int:
        """Return the total size of the writer files that have items after the id `head`."""

    def read_range(self, queue: Any, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Read a reader's items with ids from `first_id` to below `end_id`, in a thread.

        Read at most `max_bytes` of data, but at least one item if there is one.
        """

    def end_of(self, first_id: int, max_items: int) -> int:
        """Return an end id for a range of at most `max_items` safe items that begins at `first_id`."""


@implementer(IQueueStorage)
class ScrollQueue(LogQueue):
    """A queue in a scroll: the set of done ids, and a small window of the next items (`IQueueStorage`).

    All ids up to `done.head` are done. Items from there to below `next_id` are done, open or in the window. Items from
    `next_id` on are *behind* the window: only in the files, or not yet written. Items for other readers count as done.
    The queue can be adapted to `IItemRanges`.
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
        super().__init__(name, settings, journal.memory_limit)
        self.reader = reader
        """Name of the reader in the writer files."""
        # The storage uses the whole journal, a queue only the protocol.
        self.journal: Any = journal
        self._journal = journal
        self.commit_unit: object = journal
        self.done = state.done
        self.held = state.held
        """Hold of a client that reads by ids, or None. Items after its id are kept until released, even if done."""
        self.file = file
        self.replayed_items = self.items = counts.items
        self.bytes = counts.bytes
        self.behind_items, self.behind_bytes = counts
        self.next_id = state.done.head + 1
        self.last_id = 0
        """Id of the last item put to this object, or 0."""
        self.file_position = b"", 0
        """Name of a writer file, and an offset in it at or before the item `next_id`. Reads start there."""
        self._changes = ReaderChanges(state.done.head)
        self.written_head = state.done.head
        """Head that is recorded in the reader file."""
        self._written_held = state.held
        """Hold that is recorded in the reader file."""
        self.synced_done_id = self.written_done_id
        """Value of `written_done_id` that the last sync of the reader file covered."""
        self._errors = state.errors
        self.compacted_bytes = 0
        """Size of the reader file after its last rewrite."""
        self._checkpoint_head = state.done.head
        """Head in the checkpoint that is being written."""
        self._has_skipped = False
        """True if items of other readers were skipped since the last checkpoint, or if a checkpoint has failed."""

    def __conform__(self, interface: InterfaceClass) -> Any:
        """Adapt the queue to `IItemRanges`."""
        return ItemRanges(self, self._journal) if interface is IItemRanges else None

    # Adding items.

    def put(self, record: bytes, item_id: int, size: int) -> None:
        """Append an item: its PUT record, its id, and the size of its data in bytes."""
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
        """Mark the ids from `next_id` to below `item_id` as done, because their items are for other readers."""
        if item_id > self.next_id:
            self.done.add(self.next_id, item_id - 1)
            self.next_id = item_id
            self._has_skipped = True

    # Taking items.

    def decode(self, record: bytes) -> Item:
        """Decode a record, and add the item's error count, which only memory and the reader file have."""
        item = decode_put(record)
        item.errors = self._errors.get(item.id, item.errors)
        return item

    _decode = decode

    def take(self, opened: bool) -> Item | None:
        """Remove and return the head, or return None. If `opened` is true, the item becomes an open read."""
        item = super().take(opened)
        if item is not None and not opened:
            self._finished(item.id)
        return item

    def confirm(self, xids: Sequence[int]) -> int:
        """Confirm open reads. Return how many of the `xids` were open."""
        self.check()
        confirmed = [self._open[xid].id for xid in dict.fromkeys(xids) if xid in self._open]
        for xid in xids:
            self.finish(xid)
        for item_id in confirmed:
            self._finished(item_id)
        return len(confirmed)

    def put_back(self, xids: Sequence[int], failed: bool) -> None:
        """Return open reads to the head of the queue; the item of `xids[0]` becomes the head.

        If `failed` is true, their error counts are recorded.
        """
        returned = [self._open[xid] for xid in xids if xid in self._open]
        super().put_back(xids, failed)
        if failed:
            for item in returned:
                self._errors[item.id] = item.errors
                self._changes.set_errors(item.id, item.errors)

    def clear(self) -> None:
        """Drop all items except open reads."""
        self.check()
        self._drop_to(self._journal.last_id + 1, (item.id for item in self._open.values()))
        self.release_items()
        self.items = self.bytes = 0

    def _finished(self, item_id: int) -> None:
        """Record that an item is done."""
        self.done.add(item_id)
        self._changes.add_done(item_id, item_id, self.done.head)
        if self._errors:
            self._errors.pop(item_id, None)

    def _drop_to(self, end_id: int, kept: Any) -> None:
        """Mark all ids below `end_id` as done, except the ids in `kept`. Move `next_id` to at least `end_id`."""
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
            self.behind_generation += 1
            try:
                counts = self._journal.count_remaining_for(self) if end_id <= self._journal.last_id else NO_ITEMS
            except (OSError, HintMismatch) as error:
                raise self._journal.fail(error) from error
            self.behind_items, self.behind_bytes = counts
            self.skip_items_of_others()

    # Ranges of ids.

    @property
    def released_id(self) -> int:
        """Last id that is released, so a client that reads by ids cannot read it."""
        if self.held is not None:
            return self.held.head
        self.skip_items_of_others()
        return self.done.head

    def hold(self, by: bytes | None) -> None:
        """Keep items for the reader `by` until it releases them, or end the hold if `by` is None."""
        self.check()
        self.held = None if by is None else Held(by, self.released_id)
        self._changes.set_held(self.held)

    def release(self, end_id: int) -> None:
        """Mark all items with ids below `end_id` as done and released, even open reads (`IItemRanges.release`)."""
        self.check()
        end_id = min(end_id, self._journal.last_id + 1)
        if end_id > self.done.head + 1:
            self._remove_below(end_id)
        if self.held is not None and self.held.head < end_id - 1:
            # Recorded after the removal: if a crash separates them, the client can release the items again.
            self.held = self.held._replace(head=end_id - 1)
            self._changes.set_held(self.held)

    def _remove_below(self, end_id: int) -> None:
        """Remove all items with ids below `end_id` from the queue, including open reads."""
        for xid in [xid for xid, item in self._open.items() if item.id < end_id]:
            self.finish(xid)
        kept_front = [item for item in self._front if item.id >= end_id]
        kept_records = [record for chunk in self._records.first(len(self._records)) for record in chunk]
        kept_records = [record for record in kept_records if id_of(record) >= end_id]
        self.release_items()
        self._front.extend(kept_front)
        self._front_with_errors = sum(item.errors > 0 for item in kept_front)
        self._records.extend(kept_records)
        self._drop_to(end_id, ())
        self.items = len(kept_front) + len(kept_records) + self.behind_items
        window_bytes = sum(len(item.data) for item in kept_front) + sum(map(data_bytes, kept_records))
        self.bytes = window_bytes + self.behind_bytes

    # Items behind the window.

    @property
    def room_bytes(self) -> int:
        """Bytes of item data that the window may still take: 0 or less if it, or the server's memory, is full."""
        if self._memory_limit.most_bytes is not None and self._memory_limit.is_reached:
            return 0
        return min(WINDOW_BYTES, self.settings.max_memory_size_bytes) - self.bytes + self.behind_bytes

    @property
    def has_room(self) -> bool:
        """True if the window has room for another item."""
        return self.items - self.behind_items < WINDOW_ITEMS and self.room_bytes > 0

    def append_read_items(self, read: ScrollItemsRead) -> None:
        """Append items that were read to the window. Ids between them are skipped as items of other readers."""
        records = read.records
        if read.offset:  # 0 for pending items
            self.file_position = self.file_position[0], read.offset
        if records and id_of(records[0]) <= self.done.last:  # after a restart, items beyond the head may be done
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

    def skip_items_of_others(self) -> None:
        """If no item of this queue is behind the window, skip all ids there as items of other readers."""
        if not self.behind_items:
            self._skip_to(self._journal.last_id + 1)

    # The reader file.

    def take_changes(self) -> bytes:
        """Return the records of all changes since the last call, with a checksum, or empty bytes."""
        changes = self._changes.take(self.done.head)
        self.written_head, self._written_held = self._changes.head, self.held
        return sealed(changes) if changes else b""

    @property
    def has_changes(self) -> bool:
        """True if a checkpoint would record more than the reader file does."""
        return self._has_skipped or self._changes.are_pending(self.done.head)

    @property
    def has_unwritten(self) -> bool:
        """True if a recorded change is not written. Skipped items of other readers do not count."""
        return self._changes.are_pending(self._changes.head)

    @property
    def written_done_id(self) -> int:
        """Id up to which this reader needs no items, according to its file."""
        held = self._written_held
        return self.written_head if held is None else min(self.written_head, held.head)

    def checkpoint(self) -> bytes:
        """Return the content of a reader file with the current state."""
        return encode_state(self.state)

    def begin_checkpoint(self) -> bytes:
        """Return the content of a reader file that will replace the current one.

        All changes must have been written. Until `end_checkpoint`, nothing may be written to the file.
        """
        self.skip_items_of_others()
        self._checkpoint_head, self._has_skipped = self.done.head, False
        return self.checkpoint()

    def end_checkpoint(self, size: int) -> None:
        """Record that the checkpoint, of `size` bytes, has replaced the reader file."""
        self._changes.head_written(self._checkpoint_head)
        self.written_head = max(self.written_head, self._checkpoint_head)
        self.end_compaction(size)

    def end_compaction(self, size: int) -> None:
        """Record that the reader file was replaced by a file of `size` bytes with the same content."""
        self.file.replaced(size)
        self.compacted_bytes = size
        self.synced_done_id = self.written_done_id

    def give_up_checkpoint(self) -> None:
        """Record that a checkpoint has failed, so that another one is written later."""
        self._has_skipped = True

    @property
    def state(self) -> ReaderState:
        """Current state of the reader, as a reader file records it."""
        return ReaderState(self.done, self._errors, held=self.held)

    @property
    def is_drained(self) -> bool:
        """True if the queue has no items and no open reads, and no items are kept for a client that reads by ids."""
        return not (self.items or self._open) and (self.held is None or self.held.head >= self._journal.last_id)

    @property
    def disk_bytes(self) -> int:
        """Total size of the reader file and of the writer files that this reader needs, which siblings may share."""
        done_id = self.done.head if self.held is None else self.held.head
        return self._journal.bytes_behind(done_id) + self.file.size

    @property
    def stats(self) -> Mapping[str, int]:
        """Statistics of the journal, the number of done ranges, and the bytes kept for a client that reads by ids."""
        held_bytes = 0 if self.held is None else self._journal.bytes_behind(self.held.head)
        return {**self._journal.stats, "scroll_done_ranges": len(self.done), "scroll_held_bytes": held_bytes}


@implementer(IItemRanges)
class ItemRanges:
    """The ranges of one queue (`IItemRanges`)."""

    def __init__(self, queue: ScrollQueue, journal: Journal) -> None:
        self._queue = queue
        self._journal = journal

    @property
    def first_id(self) -> int:
        """The lowest id that is not released."""
        return self._queue.released_id + 1

    @property
    def reader(self) -> bytes | None:
        """Name of the reader that holds the items, or None."""
        return None if self._queue.held is None else self._queue.held.by

    def hold(self, reader: bytes) -> None:
        """Keep items until `reader` releases them."""
        self._queue.hold(reader)

    def end_hold(self) -> None:
        """End the hold. Items that the queue is done with are no longer kept."""
        self._queue.hold(None)

    def end_of(self, first_id: int, max_items: int) -> int:
        """Return an end id for a range of at most `max_items` safe items that begins at `first_id`."""
        return self._journal.end_of(max(first_id, self.first_id), max_items)

    @property
    def next_id(self) -> int:
        """Id of the next safe item. Released items count as safe, even if they were released before their sync."""
        return max(self._journal.safe_id, self._queue.released_id) + 1

    def read_range(self, first_id: int, end_id: int, max_bytes: int) -> Deferred[list[tuple[int, Item]]]:
        """Read the items with ids from `first_id` to below `end_id`.

        Read at most `max_bytes` of data, but at least one item if there is one.
        """
        self._queue.check()
        first_id, end_id = max(first_id, self.first_id), min(end_id, self.next_id)
        return self._journal.read_range(self._queue, first_id, end_id, max_bytes)

    def release(self, end_id: int) -> None:
        """Mark all safe items with ids below `end_id` as done and released."""
        self._queue.release(min(end_id, self.next_id))
