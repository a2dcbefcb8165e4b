"""What is known of a writer file: its ids, how many items for which reader, and where in it to find them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from kestrel.scroll.records import WRITER_MAGIC, Targets

MARK_BYTES: Final = 64 * 1024
"""From one mark to the next: to find an item takes no more reading than that."""

MAX_SINGLE_READERS: Final = 16
"""With items for more single readers than that, marks do not remember what each of them has: what stands before an item
is counted from the beginning of the file then."""


class Counts(NamedTuple):
    """How many items, and their data in bytes."""

    items: int
    bytes: int

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(self.items + other.items, self.bytes + other.bytes)

    def minus(self, other: Counts) -> Counts:
        """These without those."""
        return Counts(self.items - other.items, self.bytes - other.bytes)


NO_ITEMS: Final = Counts(0, 0)


class WriterTally:
    """Items counted as the writer put them: those for all readers, and what single readers have more or less."""

    __slots__ = ("bytes", "extra", "items")

    def __init__(self, items: int = 0, data_bytes: int = 0, extra: Mapping[bytes, Counts] | None = None) -> None:
        self.items = items
        self.bytes = data_bytes
        self.extra: dict[bytes, Counts] = dict(extra or {})

    def add(self, size: int, targets: Targets | None) -> None:
        """One more item, of that many bytes."""
        if targets is None or targets.are_left_out:
            self.items += 1
            self.bytes += size
        if targets is not None:
            one = Counts(-1, -size) if targets.are_left_out else Counts(1, size)
            for reader in targets.readers:
                self.extra[reader] = self.extra.get(reader, NO_ITEMS).plus(one)

    def of(self, reader: bytes) -> Counts:
        """What that reader was given."""
        extra = self.extra.get(reader, NO_ITEMS)
        return Counts(self.items + extra.items, self.bytes + extra.bytes)

    def copy(self) -> WriterTally:
        """As it is now."""
        return WriterTally(self.items, self.bytes, self.extra)


class WriterMark(NamedTuple):
    """A place in a writer file: the record at `offset` is the item of that id, or says for whom it is."""

    item_id: int
    offset: int
    before: WriterTally | None
    """What stands before it in the file; None where that is too much to remember."""


class WriterFile:
    """One writer file as far as it is known: up to `size`, where its last good record ends."""

    def __init__(self, file_name: bytes, number: int) -> None:
        self.file_name = file_name
        self.number = number
        self.first_id = 0
        """0: it holds no item."""
        self.last_id = 0
        self.last_offset = 0
        """Where its last item stands, or what says for whom that is."""
        self.size = 0
        self.is_closed = False
        """Whether nothing may be appended: zeros follow, or a sync of it has failed."""
        self.tally = WriterTally()
        self.marks: list[WriterMark] = []

    def add_item(self, item_id: int, offset: int, size: int, targets: Targets | None) -> None:
        """It holds one more item at that offset; `size` is that of its data."""
        self.last_offset = offset
        self.first_id = self.first_id or item_id
        self.last_id = item_id
        self.tally.add(size, targets)

    def add_items(self, last_id: int, last_offset: int, counts: Counts) -> None:
        """It holds so many more items, which are for all readers; the last of them is that one.

        Of the first that it holds `mark` has told.
        """
        self.last_id, self.last_offset = last_id, last_offset
        self.tally.items += counts.items
        self.tally.bytes += counts.bytes

    def snapshot(self) -> WriterFile:
        """What is known of it now, without its marks: it may grow."""
        known = WriterFile(self.file_name, self.number)
        known.first_id, known.last_id, known.last_offset = self.first_id, self.last_id, self.last_offset
        known.size, known.is_closed = self.size, self.is_closed
        known.tally = self.tally if self.is_closed else self.tally.copy()
        return known

    def mark(self, item_id: int, offset: int) -> None:
        """The item of that id, and what says for whom it is, will stand there: remember it if that is worth it."""
        self.first_id = self.first_id or item_id
        if not self.marks or offset - self.marks[-1].offset >= MARK_BYTES:
            before = self.tally.copy() if len(self.tally.extra) <= MAX_SINGLE_READERS else None
            self.marks.append(WriterMark(item_id, offset, before))

    def add_mark(self, mark: WriterMark) -> None:
        """Remember a place that was found otherwise."""
        index = bisect_right(self.marks, mark.item_id, key=attrgetter("item_id"))
        if not index or self.marks[index - 1].item_id != mark.item_id:
            self.marks.insert(index, mark)

    def before(self, item_id: int) -> WriterMark:
        """The last known place that is not behind the item of that id."""
        index = bisect_right(self.marks, item_id, key=attrgetter("item_id"))
        return self.marks[index - 1] if index else WriterMark(self.first_id, len(WRITER_MAGIC), WriterTally())

    def tally_before(self, item_id: int) -> tuple[WriterMark, WriterTally]:
        """The same, of those of which it is known what stands before them; and what that is."""
        for index in reversed(range(bisect_right(self.marks, item_id, key=attrgetter("item_id")))):
            mark = self.marks[index]
            if mark.before is not None:
                return mark, mark.before
        return WriterMark(self.first_id, len(WRITER_MAGIC), WriterTally()), WriterTally()
