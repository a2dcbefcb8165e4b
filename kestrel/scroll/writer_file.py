"""The index of a writer file: its ids, its item counts for each reader, and the offsets of some items."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from kestrel.scroll.records import WRITER_MAGIC, Targets

MARK_BYTES: Final = 64 * 1024
"""Distance between marks, and so the most bytes that are read to find an item."""

MAX_SINGLE_READERS: Final = 16
"""Limit of single readers in the counts of a mark. With more, items before a mark are counted from the file's start."""


class Counts(NamedTuple):
    """A number of items, and the size of their data in bytes."""

    items: int
    bytes: int

    def plus(self, other: Counts) -> Counts:
        """Return the sum of both counts."""
        return Counts(self.items + other.items, self.bytes + other.bytes)

    def minus(self, other: Counts) -> Counts:
        """Return the difference of both counts."""
        return Counts(self.items - other.items, self.bytes - other.bytes)


NO_ITEMS: Final = Counts(0, 0)


class WriterTally:
    """Counts of items for all readers, with the differences of single readers in `extra`."""

    __slots__ = ("bytes", "extra", "items")

    def __init__(self, items: int = 0, data_bytes: int = 0, extra: Mapping[bytes, Counts] | None = None) -> None:
        self.items = items
        self.bytes = data_bytes
        self.extra: dict[bytes, Counts] = dict(extra or {})

    def add(self, size: int, targets: Targets | None) -> None:
        """Count one item of `size` bytes for all readers, or for its targets."""
        if targets is None or targets.are_left_out:
            self.items += 1
            self.bytes += size
        if targets is not None:
            one = Counts(-1, -size) if targets.are_left_out else Counts(1, size)
            for reader in targets.readers:
                self.extra[reader] = self.extra.get(reader, NO_ITEMS).plus(one)

    def of(self, reader: bytes) -> Counts:
        """Return the counts of the items for one reader."""
        extra = self.extra.get(reader, NO_ITEMS)
        return Counts(self.items + extra.items, self.bytes + extra.bytes)

    def copy(self) -> WriterTally:
        """Return a copy."""
        return WriterTally(self.items, self.bytes, self.extra)


class WriterMark(NamedTuple):
    """A known position in a writer file: `offset` is the start of an item's PUT, or of the TARGETS before it."""

    item_id: int
    offset: int
    before: WriterTally | None
    """Counts of the items before the mark in the file, or None if there are too many single readers."""


class WriterFile:
    """The index of one writer file up to `size`, the end of its last valid record."""

    def __init__(self, file_name: bytes, number: int) -> None:
        self.file_name = file_name
        self.number = number
        self.first_id = 0
        """Id of the first item, or 0 if there are no items."""
        self.last_id = 0
        self.last_offset = 0
        """Offset of the last item's PUT, or of the TARGETS before it."""
        self.size = 0
        self.is_closed = False
        """True if nothing may be appended, because zeros follow or a sync of the file has failed."""
        self.tally = WriterTally()
        self.marks: list[WriterMark] = []

    def add_item(self, item_id: int, offset: int, size: int, targets: Targets | None) -> None:
        """Add an item whose records begin at `offset`. `size` is the size of its data."""
        self.last_offset = offset
        self.first_id = self.first_id or item_id
        self.last_id = item_id
        self.tally.add(size, targets)

    def add_items(self, last_id: int, last_offset: int, counts: Counts) -> None:
        """Add `counts` items for all readers. The last one has the id `last_id` and begins at `last_offset`.

        `mark` must have been called for the first item of the file.
        """
        self.last_id, self.last_offset = last_id, last_offset
        self.tally.items += counts.items
        self.tally.bytes += counts.bytes

    def snapshot(self) -> WriterFile:
        """Return a copy without the marks, which does not change when items are added."""
        known = WriterFile(self.file_name, self.number)
        known.first_id, known.last_id, known.last_offset = self.first_id, self.last_id, self.last_offset
        known.size, known.is_closed = self.size, self.is_closed
        known.tally = self.tally if self.is_closed else self.tally.copy()
        return known

    def mark(self, item_id: int, offset: int) -> None:
        """Add a mark for an item whose records will begin at `offset`, if the last mark is `MARK_BYTES` away."""
        self.first_id = self.first_id or item_id
        if not self.marks or offset - self.marks[-1].offset >= MARK_BYTES:
            before = self.tally.copy() if len(self.tally.extra) <= MAX_SINGLE_READERS else None
            self.marks.append(WriterMark(item_id, offset, before))

    def add_mark(self, mark: WriterMark) -> None:
        """Add a mark that was found in another way, such as by a hint."""
        index = bisect_right(self.marks, mark.item_id, key=attrgetter("item_id"))
        if not index or self.marks[index - 1].item_id != mark.item_id:
            self.marks.insert(index, mark)

    def before(self, item_id: int) -> WriterMark:
        """Return the last mark at or before the item with the id `item_id`, or the start of the file."""
        index = bisect_right(self.marks, item_id, key=attrgetter("item_id"))
        return self.marks[index - 1] if index else WriterMark(self.first_id, len(WRITER_MAGIC), WriterTally())

    def tally_before(self, item_id: int) -> tuple[WriterMark, WriterTally]:
        """Return the last mark with counts at or before `item_id`, or the start of the file, and its counts."""
        for index in reversed(range(bisect_right(self.marks, item_id, key=attrgetter("item_id")))):
            mark = self.marks[index]
            if mark.before is not None:
                return mark, mark.before
        return WriterMark(self.first_id, len(WRITER_MAGIC), WriterTally()), WriterTally()
