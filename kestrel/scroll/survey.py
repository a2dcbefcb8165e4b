"""What a writer file holds: its ids, how many items for which reader, and where in it to find them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader, Part
from kestrel.disk.repair import CUT_SHORT, End
from kestrel.scroll.records import (
    LARGEST_ID,
    MAX_DATA_BYTES,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    WRITER_MAGIC,
    Command,
    DamagedRecord,
    Record,
    Targets,
    UnfinishedRecord,
    decode_record,
)

MARK_BYTES: Final = 64 * 1024
"""From one mark to the next: to find an item takes no more reading than that."""

MOST_EXTRA: Final = 16
"""With items for more single readers than that, marks do not remember what each of them has."""

PUT: Final = Command.PUT << 4 | 6
PUT_EXPIRING: Final = Command.PUT << 4 | 8
PUT_HEAD: Final = Struct("<iiq")
"""Behind the first byte: how many bytes of data, errors, id."""


LARGE_BYTES: Final = 16 * 1024
HOP_BYTES: Final = 4096
"""Behind an item that large, no more than this is read to find the next header."""


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


NONE: Final = Counts(0, 0)


class Tally:
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
                self.extra[reader] = self.extra.get(reader, NONE).plus(one)

    def of(self, reader: bytes) -> Counts:
        """What that reader was given."""
        extra = self.extra.get(reader, NONE)
        return Counts(self.items + extra.items, self.bytes + extra.bytes)

    def copy(self) -> Tally:
        """As it is now."""
        return Tally(self.items, self.bytes, self.extra)


class Mark(NamedTuple):
    """A place in a writer file: the record at `offset` is the item of that id, or says for whom it is."""

    item_id: int
    offset: int
    before: Tally | None
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
        self.tally = Tally()
        self.marks: list[Mark] = []

    def added(self, item_id: int, offset: int, size: int, targets: Targets | None) -> None:
        """It holds one more item at that offset; `size` is that of its data."""
        self.last_offset = offset
        self.first_id = self.first_id or item_id
        self.last_id = item_id
        self.tally.add(size, targets)

    def added_more(self, last_id: int, last_offset: int, counts: Counts) -> None:
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
            before = self.tally.copy() if len(self.tally.extra) <= MOST_EXTRA else None
            self.marks.append(Mark(item_id, offset, before))

    def add_mark(self, mark: Mark) -> None:
        """Remember a place that was found otherwise."""
        index = bisect_right(self.marks, mark.item_id, key=attrgetter("item_id"))
        if not index or self.marks[index - 1].item_id != mark.item_id:
            self.marks.insert(index, mark)

    def before(self, item_id: int) -> Mark:
        """The last known place that is not behind the item of that id."""
        index = bisect_right(self.marks, item_id, key=attrgetter("item_id"))
        return self.marks[index - 1] if index else Mark(self.first_id, len(WRITER_MAGIC), Tally())

    def counted_before(self, item_id: int) -> tuple[Mark, Tally]:
        """The same, of those of which it is known what stands before them; and what that is."""
        for index in reversed(range(bisect_right(self.marks, item_id, key=attrgetter("item_id")))):
            mark = self.marks[index]
            if mark.before is not None:
                return mark, mark.before
        return Mark(self.first_id, len(WRITER_MAGIC), Tally()), Tally()


class WrongMark(Exception):
    """A file does not hold what a hint says."""


def survey(reader: FileReader, file: WriterFile, floor_id: int = 0) -> End:
    """Count what the file holds behind what is known of it. Items whose id is not above `floor_id` do not count.

    In one file ids rise: one that does not is damage. Data is not read: the survey goes from header to header. Raises
    OSError.
    """
    if not file.size:
        magic = reader.read(0, len(WRITER_MAGIC))
        if magic != WRITER_MAGIC:
            is_unfinished = WRITER_MAGIC.startswith(magic)
            return End(0, CUT_SHORT if is_unfinished else "this is no journal", is_unfinished=is_unfinished)
        file.size = len(WRITER_MAGIC)
    walk = _Walk(reader, file.size, PART_BYTES)
    walk.item_id = file.last_id or walk.item_id
    last_id = max(floor_id, file.last_id)
    while walk.next():
        if walk.item_id > last_id:
            last_id = walk.item_id
            file.mark(walk.item_id, walk.start)
            file.added(walk.item_id, walk.start, walk.data_bytes, walk.targets)
            run = walk.run()
            if run.items:
                last_id = walk.item_id
                file.added_more(last_id, walk.start, run)
    file.size = walk.end.offset
    file.is_closed = file.is_closed or (walk.end.problem is None and file.size < reader.size)
    return walk.end


def check_known(reader: FileReader, file: WriterFile) -> None:
    """Raise `WrongMark` unless the last item that is known of the file stands where it should. Raises OSError."""
    if reader.size < file.size:
        raise WrongMark
    walk = _Walk(reader, file.last_offset)
    if not walk.next() or walk.item_id != file.last_id or walk.end.offset != file.size:
        raise WrongMark


def counts_to(reader: FileReader, file: WriterFile, who: bytes, item_id: int) -> Counts:
    """What that reader was given of this file up to that item, it included. Raises `WrongMark`, or OSError."""
    if item_id < file.first_id:
        return NONE
    if item_id >= file.last_id:
        return file.tally.of(who)
    mark, before = file.counted_before(item_id + 1)
    tally = before.copy()
    for walk in _from_mark(reader, mark):
        if walk.item_id > item_id:
            break
        tally.add(walk.data_bytes, walk.targets)
    return tally.of(who)


def counts_in(reader: FileReader, file: WriterFile, who: bytes, ranges: Sequence[tuple[int, int]]) -> Counts:
    """What of this file, within these ranges of ids, which are sorted, that reader was given. Raises as `counts_to`."""
    tally = Tally()
    rest = iter(ranges)
    first, last = next(rest, (0, -1))
    for walk in _from_mark(reader, file.before(first)):
        while walk.item_id > last:
            first, last = next(rest, (0, -1))
            if last < 0:
                return tally.of(who)
        if walk.item_id >= first:
            tally.add(walk.data_bytes, walk.targets)
    return tally.of(who)


def _from_mark(reader: FileReader, mark: Mark) -> Iterator[_Walk]:
    walk = _Walk(reader, mark.offset)
    last_id = mark.item_id - 1
    while walk.next():
        if walk.item_id != mark.item_id and last_id < mark.item_id:
            raise WrongMark
        if walk.item_id > last_id:
            last_id = walk.item_id
            yield walk
    if last_id < mark.item_id:
        raise WrongMark


class _Walk:
    """Goes from item to item of a file. `start` is where the item's records begin."""

    def __init__(self, reader: FileReader, offset: int, part_bytes: int = MARK_BYTES) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._offset = offset
        """Where the next record begins,"""
        self._data = b""
        self._data_start = offset
        """and where the bytes at hand begin."""
        self.start = offset
        self.item_id = -1
        self.data_bytes = 0
        self.targets: Targets | None = None
        self.end = End(offset)

    def next(self) -> bool:
        """The next item. False at the end of what is good: `end` says how that is."""
        self.targets = None
        self.start = self._offset
        file_size = self._reader.size
        while self._offset < file_size:
            position = self._offset - self._data_start
            if position + PUT_EXPIRING_BYTES > len(self._data):
                size = self._part_bytes if self.data_bytes < LARGE_BYTES else HOP_BYTES
                self._data = self._reader.read(self._offset, size)
                self._data_start, position = self._offset, 0
            command = self._data[position]
            if command in (PUT, PUT_EXPIRING):
                header = PUT_BYTES if command == PUT else PUT_EXPIRING_BYTES
                if self._offset + header > file_size:
                    return self._ends(CUT_SHORT, is_unfinished=True)
                size, _, item_id = PUT_HEAD.unpack_from(self._data, position + 1)
                if not 0 <= size <= MAX_DATA_BYTES:
                    return self._ends(f"impossible size {size}")
                if not self.item_id < item_id <= LARGEST_ID:
                    return self._ends("impossible id")
                if self._offset + header + size > file_size:
                    return self._ends(CUT_SHORT, is_unfinished=True)
                self._offset += header + size
                self.item_id, self.data_bytes = item_id, size
                self.end.offset = self._offset
                return True
            if not command:
                return self._ends_with_zeros()
            record = self._other_record()
            if record is None:
                return False
            start, self._offset = self._offset, self._offset + record.size
            if record.command == Command.PUT:
                if record.item_id <= self.item_id:
                    return self._ends("impossible id")
                self.item_id, self.data_bytes = record.item_id, record.data_size
                self.end.offset = self._offset
                return True
            self.targets = record.targets if record.command == Command.TARGETS else None
            if self.targets is None:
                self.start = self._offset
                self.end.offset = self._offset
            else:
                self.start = start
        if self.targets is not None:
            return self._ends(CUT_SHORT, is_unfinished=True)  # the item that it is about is missing
        return False

    def run(self) -> Counts:
        """Go on over items in their usual form, whose ids rise and which are for all, as far as the bytes at hand go.

        No further than it is from one mark to the next. It stands at the last of them then.
        """
        data, unpack = self._data, PUT_HEAD.unpack_from
        position = begin = self._offset - self._data_start
        stop = min(len(data) - PUT_EXPIRING_BYTES, begin + MARK_BYTES)
        last_start, last_id, items, data_size = self.start, self.item_id, 0, 0
        while position < stop:
            command = data[position]
            header = PUT_BYTES if command == PUT else PUT_EXPIRING_BYTES
            size, _, item_id = unpack(data, position + 1)
            end = position + header + size
            if command not in (PUT, PUT_EXPIRING) or size < 0 or end > len(data) or not last_id < item_id <= LARGEST_ID:
                break
            last_start, last_id = position, item_id
            items += 1
            data_size += size
            position = end
        if items:
            self.start, self.item_id = self._data_start + last_start, last_id
            self._offset = self.end.offset = self._data_start + position
        return Counts(items, data_size)

    def _other_record(self) -> Record | None:
        """One that is no item in its usual form. None: it is not good, and `end` says why."""
        part = Part(self._reader, self._data_start, self._data)
        try:
            return decode_record(self._data, self._offset - self._data_start, part)
        except UnfinishedRecord:
            self._ends(CUT_SHORT, is_unfinished=True)
        except DamagedRecord as damage:
            self._ends(str(damage))
        return None

    def _ends(self, problem: str, *, is_unfinished: bool = False) -> bool:
        self.end.problem, self.end.is_unfinished = problem, is_unfinished
        return False

    def _ends_with_zeros(self) -> bool:
        """A writer that makes its files large at once leaves zeros behind its last record."""
        for offset in range(self._offset, self._reader.size, PART_BYTES):
            if self._reader.read(offset, PART_BYTES).strip(b"\0"):
                return self._ends("zeros stand before other bytes", is_unfinished=True)
        return False
