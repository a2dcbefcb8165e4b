"""Functions that count and find the items of a writer file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kestrel.disk.reader import FileReader
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.scroll.record_cursor import ZEROS_BEFORE_OTHERS, FoundItem, ScrollRecordCursor, has_only_zeros
from kestrel.scroll.records import BELOW_ALL_IDS, WRITER_MAGIC
from kestrel.scroll.writer_file import MARK_BYTES, NO_ITEMS, Counts, WriterFile, WriterMark, WriterTally


class HintMismatch(Exception):
    """A file whose content does not match its hint."""


def index_writer_file(reader: FileReader, file: WriterFile, floor_id: int = 0) -> ReadEnd:
    """Add the items after `file.size` to `file`, and return where the file ends.

    Items with ids up to `floor_id` are not counted. An id that is not higher than the one before it is damage. Only
    headers are read, no data. Raise OSError.
    """
    if not file.size:
        magic = reader.read(0, len(WRITER_MAGIC))
        if magic != WRITER_MAGIC:
            is_unfinished = WRITER_MAGIC.startswith(magic)
            return ReadEnd(0, TORN_RECORD if is_unfinished else "this is no journal", is_unfinished=is_unfinished)
        file.size = len(WRITER_MAGIC)
    cursor = ScrollRecordCursor(reader, WRITER_MAGIC, file.size, has_data=False, ids_rise=True)
    cursor.item_id = file.last_id or cursor.item_id
    floor_id = max(floor_id, file.last_id)
    while cursor.next(most_bytes=MARK_BYTES):
        starts = cursor.starts
        if cursor.is_plain and (first_id := cursor.id_at(starts[0])) > floor_id:
            file.mark(first_id, cursor.data_start + starts[0])
            file.add_items(cursor.item_id, cursor.data_start + starts[-1], len(starts), cursor.data_bytes)
        elif cursor.item_id > floor_id:
            _add_run(file, cursor, floor_id)
    end = cursor.end
    if cursor.zeros_at is not None:
        end.is_unfinished = not has_only_zeros(reader, cursor.zeros_at)
        end.problem = ZEROS_BEFORE_OTHERS if end.is_unfinished else None
    file.size = end.offset
    file.is_closed = file.is_closed or (end.problem is None and file.size < reader.size)
    return end


def _add_run(file: WriterFile, cursor: ScrollRecordCursor, floor_id: int) -> None:
    """Add the items of a run with ids above `floor_id`. Adjacent items for all readers are added together."""
    is_first = True
    items = data_bytes = last_id = last_start = 0
    for item_id, size, targets, start, _ in cursor.run_items():
        if item_id <= floor_id:
            continue
        if is_first:
            file.mark(item_id, start)
            is_first = False
        if targets is None:
            items += 1
            data_bytes += size
            last_id, last_start = item_id, start
            continue
        if items:
            file.add_items(last_id, last_start, items, data_bytes)
            items = data_bytes = 0
        file.add_item(item_id, start, size, targets)
    if items:
        file.add_items(last_id, last_start, items, data_bytes)


class IdGap(NamedTuple):
    """The first item after missing ids: its id, the offset of its records, and the number of items before it."""

    item_id: int
    offset: int
    items_before: int


def find_id_gap(reader: FileReader, file: WriterFile, item_id: int) -> IdGap | None:
    """Return the gap at which the ids of a file jump to or over `item_id`, or None if there is none. Raise OSError."""
    items = previous_id = 0
    for found_id, _, _, start, _ in _items_from(reader):
        if found_id >= item_id:
            is_jump = found_id > item_id or (items > 0 and item_id > previous_id + 1)
            return IdGap(found_id, start, items) if is_jump else None
        items += found_id >= file.first_id
        previous_id = found_id
    return None


def has_second_id(reader: FileReader, file: WriterFile) -> bool:
    """Return whether the second id of a file is the first id plus one. Raise OSError."""
    second_id = next((item[0] for item in _items_from(reader) if item[0] > file.first_id), 0)
    return second_id == file.first_id + 1


def _items_from(reader: FileReader, offset: int = len(WRITER_MAGIC)) -> Iterator[FoundItem]:
    cursor = ScrollRecordCursor(reader, WRITER_MAGIC, offset, has_data=False, ids_rise=True, part_bytes=MARK_BYTES)
    return cursor.items()


def check_index(reader: FileReader, file: WriterFile) -> None:
    """Raise `HintMismatch` unless the last known item is at `last_offset` and ends at `size`. Raise OSError."""
    if reader.size < file.size:
        raise HintMismatch
    cursor = ScrollRecordCursor(
        reader, WRITER_MAGIC, file.last_offset, has_data=False, ids_rise=True, part_bytes=MARK_BYTES
    )
    while cursor.item_id == BELOW_ALL_IDS and cursor.next(1):
        pass
    if cursor.item_id != file.last_id or cursor.end.offset != file.size:
        raise HintMismatch


def count_up_to(reader: FileReader, file: WriterFile, target_reader: bytes, item_id: int) -> Counts:
    """Return the counts of a reader's items in this file up to and including `item_id`.

    Raise `HintMismatch` or OSError.
    """
    if item_id < file.first_id:
        return NO_ITEMS
    if item_id >= file.last_id:
        return file.tally.of(target_reader)
    mark, before = file.tally_before(item_id + 1)
    tally = before.copy()
    for found_id, size, targets, _, _ in _from_mark(reader, mark):
        if found_id > item_id:
            break
        tally.add(size, targets)
    return tally.of(target_reader)


def count_in_ranges(
    reader: FileReader, file: WriterFile, target_reader: bytes, ranges: Sequence[tuple[int, int]]
) -> Counts:
    """Return the counts of a reader's items in this file within sorted ranges of ids.

    Raise `HintMismatch` or OSError.
    """
    tally = WriterTally()
    rest = iter(ranges)
    first, last = next(rest, (0, -1))
    for found_id, size, targets, _, _ in _from_mark(reader, file.before(first)):
        while found_id > last:
            first, last = next(rest, (0, -1))
            if last < 0:
                return tally.of(target_reader)
        if found_id >= first:
            tally.add(size, targets)
    return tally.of(target_reader)


def _from_mark(reader: FileReader, mark: WriterMark) -> Iterator[FoundItem]:
    last_id = mark.item_id - 1
    for item in _items_from(reader, mark.offset):
        item_id = item[0]
        if item_id != mark.item_id and last_id < mark.item_id:
            raise HintMismatch
        if item_id > last_id:
            last_id = item_id
            yield item
    if last_id < mark.item_id:
        raise HintMismatch
