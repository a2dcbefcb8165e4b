"""How much a reader still has of some writer files, with as little reading as the marks allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import TypeAlias

from kestrel.disk.reader import FileReader
from kestrel.scroll.survey import counts_in, counts_to
from kestrel.scroll.writer_file import NONE, Counts, WriterFile

OpenFile: TypeAlias = Callable[[bytes], AbstractContextManager[FileReader]]
"""Opens the writer file of that name to be read. Raises OSError."""

def left_for(
    who: bytes, after_id: int, done: Sequence[tuple[int, int]], files: Iterable[WriterFile], open_file: OpenFile
) -> Counts:
    """The items that these files have for that reader behind the item `after_id`, without those in the ranges `done`.

    Raises `WrongMark` when a file does not hold what is known of it, or OSError.
    """
    total = NONE
    for file in files:
        if file.last_id <= after_id:
            continue
        holes = list(_holes(max(file.first_id, after_id + 1), file.last_id, done))
        if holes == [(file.first_id, file.last_id)]:
            total = total.plus(file.tally.of(who))
        elif holes:
            with open_file(file.file_name) as reader:
                total = total.plus(_left_in(reader, file, who, holes))
    return total


def _holes(first_id: int, last_id: int, done: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What of these ids is in none of the ranges, which are sorted."""
    for index in range(bisect_left(done, first_id, key=itemgetter(1)), len(done)):
        first, last = done[index]
        if first > last_id:
            break
        if first > first_id:
            yield first_id, first - 1
        first_id = last + 1
    if first_id <= last_id:
        yield first_id, last_id


def _left_in(reader: FileReader, file: WriterFile, who: bytes, holes: list[tuple[int, int]]) -> Counts:
    """What that reader has in these holes: those that lie beside each other are counted in one go, large ones by marks.
    """
    total = NONE
    beside: list[tuple[int, int]] = []
    for first, last in holes:
        if file.before(last).item_id > file.before(first).item_id:  # at least one mark lies within
            both = counts_to(reader, file, who, last).minus(counts_to(reader, file, who, first - 1))
            total = total.plus(both)
            continue
        if beside and file.before(first).offset != file.before(beside[0][0]).offset:
            total = total.plus(counts_in(reader, file, who, beside))
            beside = []
        beside.append((first, last))
    return total.plus(counts_in(reader, file, who, beside)) if beside else total
