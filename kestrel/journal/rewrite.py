"""The contents of a file that replaces older ones: the state of the queue at the point where they end.

Later files depend on positions, since a REMOVE drops whatever item is the head. So each item that was in the queue at
that point needs a record in the new file. An item that later files remove is replaced by an empty item of 21 bytes,
which the same record drops.

The error counts of items are also those at that point, since later files add to them.
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
from kestrel.journal.fileset import Span
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
"""Bytes of an item's error count: the records that open the item once more and put it back with the count."""

_RUN: Final = 4096


class Boundary(NamedTuple):
    """The state of the queue at the end of a rotated file, as ids of items."""

    number: int
    """Number of the rotated file."""
    end: int
    """Offset of the file's end in the history."""
    open: Mapping[int, int]
    """Item id of each open read, by xid."""
    front: list[int]
    """Ids of the items at the head that had been peeked at, or opened and put back."""
    errors: Mapping[int, int]
    """Error counts of the items in `open` and `front` that have errors, by item id."""
    counted: int
    """Upper bound of the number of error counts to write: one for each open read that has errors, and one for each
    item of `front` up to the last that has errors."""
    first_id: int
    """Id of the first item after `front`."""
    next_id: int
    """Id after the last item of the queue."""
    waiting_bytes: int
    """Bytes of data of the items from `first_id` on, or -1 if they are not known."""
    last_xid: int
    """Xid of the read that was opened last."""

    @property
    def most_bytes(self) -> int:
        """Upper bound of the bytes of the records that restore this state, without the data of the items."""
        item_count = len(self.open) + len(self.front) + self.next_id - self.first_id
        return item_count * ADDX_HEADER_BYTES + self.record_bytes

    @property
    def record_bytes(self) -> int:
        """Upper bound of the bytes of the records for open reads and error counts, without the records of items."""
        return len(self.open) * XID_RECORD_BYTES + self.counted * ERRORS_BYTES

    @property
    def id_count(self) -> int:
        """Number of ids in `open`, `front` and `errors`."""
        return len(self.open) + len(self.front) + len(self.errors)


class ReadBehindItems(NamedTuple):
    """The items that are only on disk, all of them in rotated files."""

    first_id: int
    """Id of the first item."""
    items: int
    """Number of items."""
    offset: int
    """Offset of the history at which reading begins."""
    skip: int
    """Number of items to skip from `offset` on."""
    now_ms: int
    """Add time of items whose record has none."""
    bytes: int
    """Size of the records."""


class ReplacementRecords:
    """A snapshot of the records for a new file. It is made at once and read in a thread.

    `taken` has the items, by id, that are open or were put back. `runs` has the records in memory from `first_id` on.
    `behind` describes the items that are only on disk.
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
        """Bytes of the records yielded so far."""
        self._taken = taken
        self._first_id = first_id
        self._runs = runs
        self._behind = behind
        self._mark_ids: list[int] = []
        self._mark_offsets: list[int] = []

    def runs(self, disk: Disk, folder: bytes, spans: Sequence[Span]) -> Iterator[bytes]:
        """Yield the records in runs of about 1 MiB. `spans` are the rotated files up to the boundary."""
        return join_runs(self._all(disk, folder, spans))

    def most_bytes(self) -> int:
        """Return an upper bound of the bytes of the records. It may take long, so call it in a thread."""
        boundary = self.boundary
        taken = [item for item_id, item in self._taken.items() if item_id < boundary.next_id]
        in_runs = sum(len(run) for run in self._runs)
        item_count = len(boundary.open) + len(boundary.front) + boundary.next_id - boundary.first_id
        size = (item_count - in_runs - self._behind.items) * ADDX_HEADER_BYTES + boundary.record_bytes
        size += sum(len(item.data) for item in taken) + sum(sum(map(len, run)) for run in self._runs)
        return size + self._behind.bytes

    def offset_of(self, item_id: int) -> tuple[int, int]:
        """Return an offset of the new file, and how many items to skip there, to find an item that was only on disk."""
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
        """Yield the items of the front. Up to the last one with errors, they are opened and put back with counts."""
        front, is_taken = self.boundary.front, self.boundary.open
        most = max((position for position, item_id in enumerate(front, 1) if self._errors(item_id)), default=0)
        opened = list(zip(front[:most], (xid for xid in count(1) if xid not in is_taken), strict=False))
        for item_id, xid in opened:
            yield self._item(item_id)
            yield encode_open(xid)
        for item_id, xid in reversed(opened):
            yield encode_put_back(xid, self._errors(item_id))
        for item_id in front[most:]:
            yield self._item(item_id)

    def _errors(self, item_id: int) -> int:
        """Return the error count of an item at the boundary; 0 if the item has been removed since."""
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
            raise OSError(errno.EIO, "the journal files have fewer items than expected")


def repeat_record(record: bytes, count: int) -> Iterator[bytes]:
    """Yield `count` copies of a record, in runs."""
    for _ in range(count // _RUN):
        yield record * _RUN
    if count > 0:
        yield record * (count % _RUN)


def join_runs(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield records in runs of about 1 MiB."""
    run: list[bytes] = []
    size = 0
    for record in records:
        run.append(record)
        size += len(record)
        if size >= PART_BYTES:
            yield b"".join(run)
            run, size = [], 0
    yield b"".join(run)
