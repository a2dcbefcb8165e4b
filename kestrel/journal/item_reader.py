"""Read-behind: reading items that are only on disk into memory."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.item import Item
from kestrel.journal.record_cursor import ErrorCounts
from kestrel.journal.records import ADDX_HEADER_BYTES
from kestrel.journal.replay import replay_part

_MIN_READ_BYTES: Final = 4096


class DamagedJournalFile(OSError):
    """A journal file that has changed since it was replayed. Only another replay can read it."""


class JournalItemsRead(NamedTuple):
    """Items as their ADDX records. The next read begins at `offset` of the history and skips `skip` items."""

    records: list[bytes]
    offset: int
    skip: int


def read_items(
    reader: FileReader, start: int, offset: int, end: int, skip: int, max_items: int, room_bytes: int, now_ms: int
) -> JournalItemsRead:
    """Read the next items from `offset` on, after skipping `skip` items.

    Return at most `max_items` items with about `room_bytes` of data, but at least one item if there is one. `start` is
    the offset of the file in the history. Reading stops at the offset `end`. `now_ms` is the add time of items whose
    record has none. Records that do not add items are ignored. Raise `DamagedJournalFile`, or another OSError if the
    file cannot be read.
    """
    items = _ItemCollector(skip, max_items, room_bytes)
    # Required by `replay_part`; the items that are read have no error counts.
    counts = ErrorCounts()
    needed = 0
    usual = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes))
    while offset < end and not items.records and items.stopped_at is None:
        part = reader.part(offset - start, min(max(needed, usual), end - offset))
        if len(part.data) < needed or not part.data:
            raise DamagedJournalFile(errno.EIO, "the journal file became shorter")
        done = replay_part(part, items, now_ms, offset, counts)
        offset += done.position
        needed = done.needed
        # Damage matters only if no item was read, because anything may follow the last known item.
        if not items.records and (done.damage is not None or needed > end - offset):
            raise DamagedJournalFile(errno.EIO, "the journal file is damaged")
    return JournalItemsRead(items.records, offset if items.stopped_at is None else items.stopped_at, items.skip)


class _ItemCollector:
    """A replay target that collects items up to its limits and ignores other records."""

    last_xid = 0

    def __init__(self, skip: int, max_items: int, room_bytes: int) -> None:
        self.records: list[bytes] = []
        self.skip = skip
        self.stopped_at: int | None = None
        """Offset of the first item that was not collected, or None."""
        self._items_left = max_items
        self._room_bytes = room_bytes

    def append(self, record: bytes, offset: int) -> None:
        """Skip or collect an item, or note its offset if a limit is reached."""
        if self.skip:
            self.skip -= 1
        elif self._items_left and (self._room_bytes > 0 or not self.records):
            self.records.append(record)
            self._items_left -= 1
            self._room_bytes -= len(record) - ADDX_HEADER_BYTES
        elif self.stopped_at is None:
            self.stopped_at = offset

    def extend(self, records: list[bytes], offset: int) -> None:
        """Append items whose records are adjacent and begin at `offset`."""
        for record in records:
            self.append(record, offset)
            offset += len(record)

    # Other records are ignored.

    def next_xid(self) -> int:
        return 0

    def drop_head(self) -> None:
        pass

    def pop_head(self) -> Item | None:
        return None

    def open_as(self, item: Item, xid: int) -> None:
        pass

    def finish(self, xid: int) -> bool:
        return False

    def push_back(self, xid: int, errors: int | None) -> bool:
        return False

    def expect_implicit_xid(self) -> None:
        pass
