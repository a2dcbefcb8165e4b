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
    walk = ScrollItemCursor(reader, file.size, PART_BYTES)
    walk.item_id = file.last_id or walk.item_id
    last_id = max(floor_id, file.last_id)
    while walk.next():
        if walk.item_id > last_id:
            last_id = walk.item_id
            file.mark(walk.item_id, walk.start)
            file.add_item(walk.item_id, walk.start, walk.data_bytes, walk.targets)
            run = walk.run()
            if run.items:
                last_id = walk.item_id
                file.add_items(last_id, walk.start, run)
    file.size = walk.end.offset
    file.is_closed = file.is_closed or (walk.end.problem is None and file.size < reader.size)
    return walk.end


class IdGap(NamedTuple):
    """The first item after missing ids: its id, the offset of its records, and the number of items before it."""

    item_id: int
    offset: int
    items_before: int


def find_id_gap(reader: FileReader, file: WriterFile, item_id: int) -> IdGap | None:
    """Return the gap at which the ids of a file jump to or over `item_id`, or None if there is none. Raise OSError."""
    walk = ScrollItemCursor(reader, len(WRITER_MAGIC))
    items = previous_id = 0
    while walk.next() and walk.item_id < item_id:
        items += walk.item_id >= file.first_id
        previous_id = walk.item_id
    is_jump = walk.item_id > item_id or (items > 0 and walk.item_id == item_id > previous_id + 1)
    return IdGap(walk.item_id, walk.start, items) if is_jump else None


def has_second_id(reader: FileReader, file: WriterFile) -> bool:
    """Return whether the second id of a file is the first id plus one. Raise OSError."""
    walk = ScrollItemCursor(reader, len(WRITER_MAGIC))
    while walk.next():
        if walk.item_id > file.first_id:
            return walk.item_id == file.first_id + 1
    return False


def check_index(reader: FileReader, file: WriterFile) -> None:
    """Raise `HintMismatch` unless the last known item is at `last_offset` and ends at `size`. Raise OSError."""
    if reader.size < file.size:
        raise HintMismatch
    walk = ScrollItemCursor(reader, file.last_offset)
    if not walk.next() or walk.item_id != file.last_id or walk.end.offset != file.size:
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
    for walk in _from_mark(reader, mark):
        if walk.item_id > item_id:
            break
        tally.add(walk.data_bytes, walk.targets)
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
    for walk in _from_mark(reader, file.before(first)):
        while walk.item_id > last:
            first, last = next(rest, (0, -1))
            if last < 0:
                return tally.of(target_reader)
        if walk.item_id >= first:
            tally.add(walk.data_bytes, walk.targets)
    return tally.of(target_reader)


def _from_mark(reader: FileReader, mark: WriterMark) -> Iterator[ScrollItemCursor]:
    walk = ScrollItemCursor(reader, mark.offset)
    last_id = mark.item_id - 1
    while walk.next():
        if walk.item_id != mark.item_id and last_id < mark.item_id:
            raise HintMismatch
        if walk.item_id > last_id:
            last_id = walk.item_id
            yield walk
    if last_id < mark.item_id:
        raise HintMismatch
