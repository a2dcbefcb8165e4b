"""Reading items forward: those of a queue that are on disk alone, as memory frees for them."""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.item import Item
from kestrel.journal.error_counts import ErrorCounts
from kestrel.journal.records import ADDX_HEADER_BYTES
from kestrel.journal.replay import replay_part

_MIN_READ_BYTES: Final = 4096


class DamagedJournalFile(OSError):
    """The file does not hold what it held when it was replayed: only another replay can tell what it does."""


class JournalItemsRead(NamedTuple):
    """Items as their ADDX records; reading goes on at `offset` of the history, with the item after `skip` others."""

    records: list[bytes]
    offset: int
    skip: int


def read_items(
    reader: FileReader, start: int, offset: int, end: int, skip: int, max_items: int, room_bytes: int, now_ms: int
) -> JournalItemsRead:
    """The next items from `offset` on: as many as stand near each other and find room, and one if there is one.

    `start` and `end` are where the file begins in the history, and where what may be read of it ends. `now_ms` is
    the add time of items whose record has none. Records that are not items are skipped. Raises
    `DamagedJournalFile`, or another OSError if the file cannot be read.
    """
    items = _ItemCollector(skip, max_items, room_bytes)
    counts = ErrorCounts()  # of open reads, so of none of these
    needed = 0
    usual = max(_MIN_READ_BYTES, min(PART_BYTES, 2 * room_bytes))
    while offset < end and not items.records and items.stopped_at is None:
        part = reader.part(offset - start, min(max(needed, usual), end - offset))
        if len(part.data) < needed or not part.data:
            raise DamagedJournalFile(errno.EIO, "the journal file became shorter")
        done = replay_part(part, items, now_ms, offset, counts)
        offset += done.position
        needed = done.needed
        # Behind the last item that is known there may be anything.
        if not items.records and (done.damage is not None or needed > end - offset):
            raise DamagedJournalFile(errno.EIO, "the journal file is damaged")
    return JournalItemsRead(items.records, offset if items.stopped_at is None else items.stopped_at, items.skip)


class _ItemCollector:
    """Takes what a replay appends, until there is enough (`kestrel.journal.replay.ReplayTarget`)."""

    last_xid = 0

    def __init__(self, skip: int, max_items: int, room_bytes: int) -> None:
        self.records: list[bytes] = []
        self.skip = skip
        self.stopped_at: int | None = None
        """The offset of the first item that was not taken."""
        self._items_left = max_items
        self._room_bytes = room_bytes

    def append(self, record: bytes, offset: int) -> None:
        """Take an item, or pass over it."""
        if self.skip:
            self.skip -= 1
        elif self._items_left and (self._room_bytes > 0 or not self.records):
            self.records.append(record)
            self._items_left -= 1
            self._room_bytes -= len(record) - ADDX_HEADER_BYTES
        elif self.stopped_at is None:
            self.stopped_at = offset

    def extend(self, records: list[bytes], offset: int) -> None:
        """Take items that stand one behind the other."""
        for record in records:
            self.append(record, offset)
            offset += len(record)

    # All that is not an item is passed over.

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
