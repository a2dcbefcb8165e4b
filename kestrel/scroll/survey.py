"""What a writer file holds: counted once, or looked up with the help of what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.disk.repair import CUT_SHORT, End
from kestrel.scroll.records import WRITER_MAGIC
from kestrel.scroll.walk import Walk
from kestrel.scroll.writer_file import NONE, Counts, Mark, Tally, WriterFile


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
    walk = Walk(reader, file.size, PART_BYTES)
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


class Jump(NamedTuple):
    """The first item of a file behind missing ids: its id, where its records begin, and how many items precede it."""

    item_id: int
    offset: int
    items_before: int


def find_jump(reader: FileReader, file: WriterFile, item_id: int) -> Jump | None:
    """Return where the ids of the file jump to `item_id` or over it, or None if they do not. Raises OSError."""
    walk = Walk(reader, len(WRITER_MAGIC))
    items = previous_id = 0
    while walk.next() and walk.item_id < item_id:
        items += walk.item_id >= file.first_id
        previous_id = walk.item_id
    is_jump = walk.item_id > item_id or (items > 0 and walk.item_id == item_id > previous_id + 1)
    return Jump(walk.item_id, walk.start, items) if is_jump else None


def has_second_id(reader: FileReader, file: WriterFile) -> bool:
    """Return whether the id behind the first one of the file follows it directly. Raises OSError."""
    walk = Walk(reader, len(WRITER_MAGIC))
    while walk.next():
        if walk.item_id > file.first_id:
            return walk.item_id == file.first_id + 1
    return False


def check_known(reader: FileReader, file: WriterFile) -> None:
    """Raise `WrongMark` unless the last item that is known of the file stands where it should. Raises OSError."""
    if reader.size < file.size:
        raise WrongMark
    walk = Walk(reader, file.last_offset)
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


def _from_mark(reader: FileReader, mark: Mark) -> Iterator[Walk]:
    walk = Walk(reader, mark.offset)
    last_id = mark.item_id - 1
    while walk.next():
        if walk.item_id != mark.item_id and last_id < mark.item_id:
            raise WrongMark
        if walk.item_id > last_id:
            last_id = walk.item_id
            yield walk
    if last_id < mark.item_id:
        raise WrongMark
