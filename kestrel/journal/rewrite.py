"""What a file has to hold that takes the place of older ones: the queue as it stood where they end.

Later files go on from there, by position: a REMOVE drops whatever is the head. So each item that was in the queue
then has its place in the new file. Where it was removed since, and later files say so, an empty item stands for it,
which takes 21 bytes; it is dropped by the record that dropped the item.

The errors of an item are those that it had then, too: later files go on counting.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.item import Item
from kestrel.journal.history import Span
from kestrel.journal.item_reader import read_items
from kestrel.journal.records import (
    ADDX_HEADER_BYTES,
    PLACEHOLDER,
    XID_RECORD_BYTES,
    encode_item,
    encode_open,
    encode_put_back,
)

ERRORS_BYTES: Final = 3 * XID_RECORD_BYTES
"""What the error count of an item takes: the item is opened once more than it would be, and goes back with it."""

_RUN: Final = 4096


class Boundary(NamedTuple):
    """What was in the queue at the end of a rotated file, by the items' ids."""

    number: int
    """Of the file."""
    end: int
    """Its offset in the history."""
    open: Mapping[int, int]
    """The id of each open read's item, by xid."""
    front: list[int]
    """The head of the queue: items that had been opened and put back, or looked at."""
    errors: Mapping[int, int]
    """The errors of those of them that have any, by the item's id."""
    counted: int
    """How many errors are written, if none of them is finished yet: those of the open reads that have any, and those
    of the front up to the last that has any."""
    first_id: int
    """The queue goes on with the items from this id,"""
    next_id: int
    """up to the one before this."""

    @property
    def most_bytes(self) -> int:
        """What the records of the file that replaces it take at most, but for the data."""
        places = len(self.open) + len(self.front) + self.next_id - self.first_id
        return places * ADDX_HEADER_BYTES + self.record_bytes

    @property
    def record_bytes(self) -> int:
        """What they take at most, but for those of the items."""
        return len(self.open) * XID_RECORD_BYTES + self.counted * ERRORS_BYTES

    @property
    def id_count(self) -> int:
        """How many numbers that is."""
        return len(self.open) + len(self.front) + len(self.errors)


class ReadBehindItems(NamedTuple):
    """The items that are on disk alone, all of them in rotated files."""

    first_id: int
    items: int
    offset: int
    """Where in the history they begin,"""
    skip: int
    """with the item after so many others."""
    now_ms: int
    """The add time of those whose record has none."""
    bytes: int
    """Their records, in bytes."""


class ReplacementRecords:
    """The records of a new file, in runs of bytes. A snapshot: made at once, and read in a thread.

    `taken` are the items, by id, that are open or were put back; `runs` the records that follow from `first_id` on.
    """

    def __init__(
        self,
        boundary: Boundary,
        taken: Mapping[int, Item],
        first_id: int,
        runs: list[tuple[bytes, ...]],
        behind: ReadBehindItems,
    ) -> None:
        self.boundary = boundary
        self.size = 0
        """The bytes given out."""
        self._taken = taken
        self._first_id = first_id
        self._runs = runs
        self._behind = behind
        self._mark_ids: list[int] = []
        self._mark_offsets: list[int] = []

    def runs(self, disk: Disk, folder: bytes, spans: Sequence[Span]) -> Iterator[bytes]:
        """The records, up to about a MiB at a time. `spans` are the rotated files up to the boundary."""
        return join_runs(self._all(disk, folder, spans))

    def most_bytes(self) -> int:
        """What the records will be at most, in bytes. Takes its time where there are many; for a thread."""
        boundary = self.boundary
        taken = [item for item_id, item in self._taken.items() if item_id < boundary.next_id]
        in_runs = sum(len(run) for run in self._runs)
        places = len(boundary.open) + len(boundary.front) + boundary.next_id - boundary.first_id
        size = (places - in_runs - self._behind.items) * ADDX_HEADER_BYTES + boundary.record_bytes
        size += sum(len(item.data) for item in taken) + sum(sum(map(len, run)) for run in self._runs)
        return size + self._behind.bytes

    def offset_of(self, item_id: int) -> tuple[int, int]:
        """Where that item stands that was on disk alone: behind so many others after that offset of the new file."""
        if item_id >= self._behind.first_id + self._behind.items:
            return self.size, 0
        mark = bisect_right(self._mark_ids, item_id) - 1
        return self._mark_offsets[mark], item_id - self._mark_ids[mark]

    def _all(self, disk: Disk, folder: bytes, spans: Sequence[Span]) -> Iterator[bytes]:
        for record in self._in_memory():
            self.size += len(record)
            yield record
        yield from self._from_disk(disk, folder, spans)

    def _in_memory(self) -> Iterator[bytes]:
        boundary = self.boundary
        for xid, item_id in boundary.open.items():
            yield self._item(item_id)
            yield encode_open(xid)
            if self._errors(item_id):
                yield encode_put_back(xid, self._errors(item_id))
                yield encode_open(xid)
        yield from self._front()
        next_id = boundary.first_id
        end = min(self._first_id, boundary.next_id)
        for item_id in sorted(item_id for item_id in self._taken if next_id <= item_id < end):
            yield from repeat_record(PLACEHOLDER, item_id - next_id)
            yield self._item(item_id)
            next_id = item_id + 1
        yield from repeat_record(PLACEHOLDER, end - next_id)
        for run in self._runs:
            if sum(map(len, run)) <= PART_BYTES:
                yield b"".join(run)
            else:
                yield from run

    def _front(self) -> Iterator[bytes]:
        """The front. Only who goes back has errors: so those up to the last that has any are opened, and put back."""
        front, is_taken = self.boundary.front, self.boundary.open
        most = max((place for place, item_id in enumerate(front, 1) if self._errors(item_id)), default=0)
        opened = list(zip(front[:most], (xid for xid in count(1) if xid not in is_taken), strict=False))
        for item_id, xid in opened:
            yield self._item(item_id)
            yield encode_open(xid)
        for item_id, xid in reversed(opened):
            yield encode_put_back(xid, self._errors(item_id))
        for item_id in front[most:]:
            yield self._item(item_id)

    def _errors(self, item_id: int) -> int:
        """The errors at the boundary; those of an item that is finished by now do not matter."""
        return self.boundary.errors.get(item_id, 0) if item_id in self._taken else 0

    def _item(self, item_id: int) -> bytes:
        item = self._taken.get(item_id)
        return PLACEHOLDER if item is None else encode_item(item.data, item.add_ms, item.expiry_ms)

    def _from_disk(self, disk: Disk, folder: bytes, spans: Sequence[Span]) -> Iterator[bytes]:
        behind = self._behind
        offset, skip, next_id = behind.offset, behind.skip, behind.first_id
        end_id = behind.first_id + behind.items
        for span in spans:
            if next_id == end_id or offset >= span.end:
                continue
            with FileReader(disk, folder + b"/" + span.file_name) as reader:
                while offset < span.end and next_id < end_id:
                    read = read_items(
                        reader, span.start, offset, span.end, skip, end_id - next_id, PART_BYTES, behind.now_ms
                    )
                    offset, skip = read.offset, read.skip
                    self._mark_ids.append(next_id)
                    self._mark_offsets.append(self.size)
                    next_id += len(read.records)
                    self.size += sum(map(len, read.records))
                    yield from read.records
        if next_id != end_id:
            raise OSError(errno.EIO, "the journal files do not hold the items that they held")


def repeat_record(record: bytes, count: int) -> Iterator[bytes]:
    """Yield so many copies of a record, in runs."""
    for _ in range(count // _RUN):
        yield record * _RUN
    if count > 0:
        yield record * (count % _RUN)


def join_runs(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield records in runs of about a MiB."""
    run: list[bytes] = []
    size = 0
    for record in records:
        run.append(record)
        size += len(record)
        if size >= PART_BYTES:
            yield b"".join(run)
            run, size = [], 0
    yield b"".join(run)
