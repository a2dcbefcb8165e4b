"""The cursor over the records of one writer or reader file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, TypeAlias

from kestrel.disk.reader import PART_BYTES, FilePart, FileReader
from kestrel.disk.records import DamagedRecord, UnfinishedRecord
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.scroll.records import (
    BELOW_ALL_IDS,
    EXPIRING_PUT_FIRST_BYTE,
    LARGEST_ID,
    MAX_DATA_BYTES,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    PUT_FIRST_BYTE,
    PUT_SIZE_AND_ID,
    RecordCommand,
    ScrollFileRecord,
    Targets,
    decode_record,
)

MOST_RECORDS: Final = 4096
"""Usual limit of the records of a run."""

FEW_RECORDS: Final = 64
"""Limit of the records of a run for callers that may need only a few items."""

LARGE_ITEM_BYTES: Final = 16 * 1024
SMALL_READ_BYTES: Final = 4096
"""Bytes that are read after an item of `LARGE_ITEM_BYTES` or more if data is not wanted."""

ZEROS_BEFORE_OTHERS: Final = "zeros before other bytes"

_PUT: Final = int(RecordCommand.PUT)
_TARGETS: Final = int(RecordCommand.TARGETS)

FoundItem: TypeAlias = tuple[int, int, Targets | None, int, int]
"""The id of an item, the size of its data, its targets, the offset of its records, and the position of its PUT."""


class ScrollRecordCursor:
    """A cursor over the records that begin from `start` up to, but not at, `stop`, by default the end of the file.

    A record must begin at `start`, or it is 0 for the whole file. A file that does not begin with `magic` has no
    records. It is unfinished if it ends within the magic, otherwise damaged.

    An iteration yields the offset and the decoded record of each one. `next` reads a run of records instead, and
    creates no object for a usual PUT. After it, `data` has the bytes of the file from offset `data_start` on. `starts`
    has the positions in `data` where the records of the run begin, and `run_end` is the end of the last one. `others`
    has the records that are not a usual PUT, by position. `data_bytes` is the size of the data of all items of the run.
    Without `has_data`, the data of large items is skipped, so `run_end` may be beyond the end of `data`.

    `end` says how far the file is valid, up to the end of the run. The end of the file, or a zero byte instead of a
    record, is a proper end; `zeros_at` is the offset of that byte, or None. With `ids_rise`, an id that is not higher
    than the one before it, `item_id`, is damage. A TARGETS without its PUT at the end of the file is part of a run, but
    counts as unfinished, so that a repair cuts it off and it cannot apply to a later PUT.
    """

    def __init__(
        self,
        reader: FileReader,
        magic: bytes,
        start: int = 0,
        stop: int | None = None,
        *,
        has_data: bool = True,
        ids_rise: bool = False,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._reader = reader
        self._part_bytes = part_bytes
        self._stop = reader.size if stop is None else min(stop, reader.size)
        self._has_data = has_data
        self._ids_rise = ids_rise
        self._part: FilePart | None = None
        """The part that begins with `data`, once a record other than a usual PUT was read from it."""
        self._offset = start
        """Offset of the next record."""
        self._next_targets: Targets | None = None
        """Targets of the item after the run, from a TARGETS at the end of the run."""
        self._next_targets_at: int | None = None
        """Offset of that TARGETS."""
        self._is_over = False
        self._is_after_large = False
        self.end = ReadEnd(start)
        self.zeros_at: int | None = None
        self.item_id = BELOW_ALL_IDS
        self.data = b""
        self.data_start = start
        self.starts: list[int] = []
        self.run_end = 0
        self.others: dict[int, ScrollFileRecord] = {}
        self.data_bytes = 0
        self._targets: dict[int, tuple[Targets, int]] = {}
        """Targets of items of the run, with the offset of their TARGETS, by the position of the PUT."""
        if not start:
            self._begin(magic)

    def _begin(self, magic: bytes) -> None:
        begins_with = self._reader.read(0, len(magic))
        if begins_with == magic:
            self._offset = self.end.offset = len(magic)
        else:
            is_unfinished = magic.startswith(begins_with)
            problem = TORN_RECORD if is_unfinished else f"it does not begin with {magic.hex(' ')}"
            self._end_with(problem, is_unfinished=is_unfinished)

    def __iter__(self) -> Iterator[tuple[int, ScrollFileRecord]]:
        while self.next():
            data, data_start, others = self.data, self.data_start, self.others
            for position, after in pairwise((*self.starts, self.run_end)):
                record = others.get(position)
                if record is None:
                    # Cheaper than decoding the record once more.
                    data_at = position + (PUT_BYTES if data[position] == PUT_FIRST_BYTE else PUT_EXPIRING_BYTES)
                    record = ScrollFileRecord(_PUT, after - position, self.id_at(position), data, position, data_at)
                yield data_start + position, record

    @property
    def is_plain(self) -> bool:
        """True if the run has only items for all readers, each in a usual PUT."""
        return not self.others and not self._targets

    def id_at(self, position: int) -> int:
        """Return the id of the item whose PUT begins at `position` of `data`."""
        item_id: int = PUT_SIZE_AND_ID.unpack_from(self.data, position + 1)[1]
        return item_id

    def items(self) -> Iterator[FoundItem]:
        """Yield the items of all following runs, which are short. Raise OSError."""
        while self.next(FEW_RECORDS):
            yield from self.run_items()

    def run_items(self) -> Iterator[FoundItem]:
        """Yield the items of the run."""
        data, data_start, others, targeted = self.data, self.data_start, self.others, self._targets
        unpack = PUT_SIZE_AND_ID.unpack_from
        for position in self.starts:
            if position in others and others[position].command != _PUT:
                continue
            size, item_id = unpack(data, position + 1)
            if position in targeted:
                targets, start = targeted[position]
                yield item_id, size, targets, start, position
            else:
                yield item_id, size, None, data_start + position, position

    def next(self, most: int = MOST_RECORDS, most_bytes: int = MAX_DATA_BYTES, *, may_read: bool = True) -> bool:
        """Read the next run of at most `most` records, which begin within `most_bytes`.

        Return False if there is none, or unless `may_read` none in the bytes that were read before. Raise OSError.
        """
        reader = self._reader
        needed = 0
        self.starts = []
        while not self.starts and not self._is_over and self._offset < self._stop:
            if needed or self._offset >= self.data_start + len(self.data):
                if not may_read:
                    break
                size = SMALL_READ_BYTES if self._is_after_large else self._part_bytes
                self.data = reader.read(self._offset, max(min(size, self._stop - self._offset), needed))
                self.data_start, self._part = self._offset, None
            needed = self._collect(most, most_bytes)
            if needed > reader.size - self._offset:
                self._end_with(TORN_RECORD, is_unfinished=True)
        is_at_end = self._is_over or self._offset >= reader.size
        if is_at_end and self._next_targets_at is not None and self.end.problem is None:
            self._end_with(TORN_RECORD, is_unfinished=True)
        return bool(self.starts)

    def _collect(self, most: int, most_bytes: int) -> int:
        """Collect a run from `data`. Return 0, or the least size of the next record if it is incomplete."""
        data, data_start, starts, unpack = self.data, self.data_start, self.starts, PUT_SIZE_AND_ID.unpack_from
        has_data, ids_rise, last_id = self._has_data, self._ids_rise, self.item_id
        position = self._offset - data_start
        length, bytes_to_end = len(data), self._reader.size - data_start
        stop = min(length, self._stop - data_start, position + most_bytes)
        last_header = length - PUT_EXPIRING_BYTES
        data_bytes = needed = 0
        self.others = others = {}
        self._targets = targeted = {}
        targets, targets_at = self._next_targets, self._next_targets_at
        for _ in range(most):
            if position >= stop:
                break
            first = data[position]
            if first == PUT_FIRST_BYTE:
                header = PUT_BYTES
            elif first == EXPIRING_PUT_FIRST_BYTE:
                header = PUT_EXPIRING_BYTES
            else:
                record = self._decoded(position)
                if record is None:
                    break
                after = position + record.size
                if after > length:
                    needed = record.size
                    break
                if record.command == _PUT:
                    if ids_rise and record.item_id <= last_id:
                        self._end_with("impossible id")
                        break
                    last_id = record.item_id if ids_rise else last_id
                    data_bytes += record.data_size
                    if targets is not None and targets_at is not None:
                        targeted[position] = targets, targets_at
                targets = record.targets if record.command == _TARGETS else None
                if targets is None:
                    targets_at = None
                elif targets_at is None:
                    targets_at = data_start + position
                others[position] = record
                starts.append(position)
                position = after
                continue
            if position > last_header and position + header > length:
                needed = header
                break
            size, item_id = unpack(data, position + 1)
            if not 0 <= size <= MAX_DATA_BYTES:
                self._end_with(f"impossible size {size}")
                break
            after = position + header + size
            if after > length and (has_data or after > bytes_to_end):
                needed = after - position
                break
            if not last_id < item_id <= LARGEST_ID:
                self._end_with("impossible id")
                break
            if ids_rise:
                last_id = item_id
            if targets is not None and targets_at is not None:
                targeted[position] = targets, targets_at
                targets = targets_at = None
            starts.append(position)
            data_bytes += size
            position = after
        if not starts:
            return needed
        self._offset, self.item_id = data_start + position, last_id
        self._next_targets, self._next_targets_at = targets, targets_at
        self.run_end, self.data_bytes = position, data_bytes
        self._is_after_large = not has_data and position - starts[-1] >= LARGE_ITEM_BYTES
        self.end.offset = self._offset if targets_at is None else targets_at
        # The next call computes what the next record needs.
        return 0

    def _decoded(self, position: int) -> ScrollFileRecord | None:
        """Return a record other than a usual PUT, or None if it is invalid or ends the file."""
        part = self._part = self._part or FilePart(self._reader, self.data_start, self.data)
        try:
            record = decode_record(part.data, position, part)
        except UnfinishedRecord:
            self._end_with(TORN_RECORD, is_unfinished=True)
        except DamagedRecord as damage:
            self._end_with(str(damage))
        else:
            if record is None:
                self._is_over, self.zeros_at = True, self.data_start + position
            return record
        return None

    def _end_with(self, problem: str, *, is_unfinished: bool = False) -> None:
        self._is_over = True
        self.end.problem, self.end.is_unfinished = problem, is_unfinished


def has_only_zeros(reader: FileReader, start: int) -> bool:
    """Return whether only zeros follow, which a writer that preallocates its files leaves after its last record."""
    return not any(reader.read(offset, PART_BYTES).strip(b"\0") for offset in range(start, reader.size, PART_BYTES))
