"""Functions that count and find the items of a writer file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.disk.run_cursor import SMALL_READ_BYTES
from kestrel.scroll.cursor import ScrollCursor, ScrollItem
from kestrel.scroll.records import BELOW_ALL_IDS, LARGEST_ID, PUT_EXPIRING_BYTES, WRITER_MAGIC
from kestrel.scroll.writer_file import MARK_BYTES, NO_ITEMS, Counts, WriterFile, WriterMark, WriterTally


class HintMismatch(Exception):
    """A file whose content does not match its hint."""


def index_writer_file(reader: FileReader, file: WriterFile, floor_id: int = 0) -> ReadEnd:
    """Add the items after `file.size` to `file`, and return where the file ends.

    Items with ids up to `floor_id` are not counted. An id that is not higher than the one before it is damage. Only
    headers are read, no data. Raise OSError.
    """
    # A part has a header more than the distance of marks, so that each run begins with a mark.
    part_bytes, known_id = MARK_BYTES + PUT_EXPIRING_BYTES, file.last_id or BELOW_ALL_IDS
    cursor = ScrollCursor(reader, WRITER_MAGIC, file.size, has_data=False, part_bytes=part_bytes, last_id=known_id)
    last_id = max(floor_id, file.last_id)
    while cursor.next():
        first_id, start = cursor.ids[0], cursor.data_start
        if cursor.has_only_items and first_id > last_id:
            file.mark(first_id, start + cursor.starts[0])
            last_id = cursor.ids[-1]
            file.add_items(last_id, start + cursor.starts[-1], Counts(len(cursor.ids), cursor.data_bytes))
            continue
        for item in cursor.items_of_run(last_id + 1):
            last_id = item.item_id
            file.mark(last_id, item.offset)
            file.add_item(last_id, item.offset, item.data_bytes, item.targets)
    file.size = cursor.end.offset
    file.is_closed = file.is_closed or cursor.end.is_closed
    return cursor.end


def _cursor(reader: FileReader, start: int = 0) -> ScrollCursor:
    return ScrollCursor(reader, WRITER_MAGIC, start, has_data=False, part_bytes=MARK_BYTES)


class IdGap(NamedTuple):
    """The first item after missing ids: its id, the offset of its records, and the number of items before it."""

    item_id: int
    offset: int
    items_before: int


def find_id_gap(reader: FileReader, file: WriterFile, item_id: int) -> IdGap | None:
    """Return the gap at which the ids of a file jump to or over `item_id`, or None if there is none. Raise OSError."""
    items = previous_id = 0
    for item in _cursor(reader).items():
        if item.item_id >= item_id:
            is_jump = item.item_id > item_id or (items > 0 and item_id > previous_id + 1)
            return IdGap(item.item_id, item.offset, items) if is_jump else None
        items += item.item_id >= file.first_id
        previous_id = item.item_id
    return None


def first_id_in(reader: FileReader) -> int:
    """Return the id of the first item of a file, or a number above all ids if there is none. Raise OSError."""
    cursor = ScrollCursor(reader, WRITER_MAGIC, has_data=False, part_bytes=SMALL_READ_BYTES)
    first = next(cursor.items(1), None)
    return LARGEST_ID + 1 if first is None else first.item_id


def has_second_id(reader: FileReader, file: WriterFile) -> bool:
    """Return whether the second id of a file is the first id plus one. Raise OSError."""
    second = next(_cursor(reader).items(file.first_id + 1), None)
    return second is not None and second.item_id == file.first_id + 1


def check_index(reader: FileReader, file: WriterFile) -> None:
    """Raise `HintMismatch` unless the last known item is at `last_offset` and ends at `size`. Raise OSError."""
    if reader.size < file.size:
        raise HintMismatch
    cursor = _cursor(reader, file.last_offset)
    item = next(cursor.items(), None)
    if item is None or item.item_id != file.last_id or cursor.data_start + item.end != file.size:
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
    for item in _from_mark(reader, mark):
        if item.item_id > item_id:
            break
        tally.add(item.data_bytes, item.targets)
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
    for item in _from_mark(reader, file.before(first)):
        while item.item_id > last:
            first, last = next(rest, (0, -1))
            if last < 0:
                return tally.of(target_reader)
        if item.item_id >= first:
            tally.add(item.data_bytes, item.targets)
    return tally.of(target_reader)


def _from_mark(reader: FileReader, mark: WriterMark) -> Iterator[ScrollItem]:
    items = _cursor(reader, mark.offset).items()
    first = next(items, None)
    if first is None or first.item_id != mark.item_id:
        raise HintMismatch
    yield first
    yield from items
