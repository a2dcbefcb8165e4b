"""Functions that count and find the items of a writer file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.scroll.item_cursor import ScrollItemCursor
from kestrel.scroll.records import WRITER_MAGIC
from kestrel.scroll.writer_file import NO_ITEMS, Counts, WriterFile, WriterMark, WriterTally


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
    cursor = ScrollItemCursor(reader, file.size, PART_BYTES)
    cursor.item_id = file.last_id or cursor.item_id
    last_id = max(floor_id, file.last_id)
    while cursor.next():
        if cursor.item_id > last_id:
            last_id = cursor.item_id
            file.mark(cursor.item_id, cursor.start)
            file.add_item(cursor.item_id, cursor.start, cursor.data_bytes, cursor.targets)
            run = cursor.run()
            if run.items:
                last_id = cursor.item_id
                file.add_items(last_id, cursor.start, run)
    file.size = cursor.end.offset
    file.is_closed = file.is_closed or (cursor.end.problem is None and file.size < reader.size)
    return cursor.end


class IdGap(NamedTuple):
    """The first item after missing ids: its id, the offset of its records, and the number of items before it."""

    item_id: int
    offset: int
    items_before: int


def find_id_gap(reader: FileReader, file: WriterFile, item_id: int) -> IdGap | None:
    """Return the gap at which the ids of a file jump to or over `item_id`, or None if there is none. Raise OSError."""
    cursor = ScrollItemCursor(reader, len(WRITER_MAGIC))
    items = previous_id = 0
    while cursor.next() and cursor.item_id < item_id:
        items += cursor.item_id >= file.first_id
        previous_id = cursor.item_id
    is_jump = cursor.item_id > item_id or (items > 0 and cursor.item_id == item_id > previous_id + 1)
    return IdGap(cursor.item_id, cursor.start, items) if is_jump else None


def has_second_id(reader: FileReader, file: WriterFile) -> bool:
    """Return whether the second id of a file is the first id plus one. Raise OSError."""
    cursor = ScrollItemCursor(reader, len(WRITER_MAGIC))
    while cursor.next():
        if cursor.item_id > file.first_id:
            return cursor.item_id == file.first_id + 1
    return False


def check_index(reader: FileReader, file: WriterFile) -> None:
    """Raise `HintMismatch` unless the last known item is at `last_offset` and ends at `size`. Raise OSError."""
    if reader.size < file.size:
        raise HintMismatch
    cursor = ScrollItemCursor(reader, file.last_offset)
    if not cursor.next() or cursor.item_id != file.last_id or cursor.end.offset != file.size:
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
    for cursor in _from_mark(reader, mark):
        if cursor.item_id > item_id:
            break
        tally.add(cursor.data_bytes, cursor.targets)
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
    for cursor in _from_mark(reader, file.before(first)):
        while cursor.item_id > last:
            first, last = next(rest, (0, -1))
            if last < 0:
                return tally.of(target_reader)
        if cursor.item_id >= first:
            tally.add(cursor.data_bytes, cursor.targets)
    return tally.of(target_reader)


def _from_mark(reader: FileReader, mark: WriterMark) -> Iterator[ScrollItemCursor]:
    cursor = ScrollItemCursor(reader, mark.offset)
    last_id = mark.item_id - 1
    while cursor.next():
        if cursor.item_id != mark.item_id and last_id < mark.item_id:
            raise HintMismatch
        if cursor.item_id > last_id:
            last_id = cursor.item_id
            yield cursor
    if last_id < mark.item_id:
        raise HintMismatch
