"""Counting the items that a reader still has in writer files, with as few reads as the marks allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import TypeAlias

from kestrel.disk.reader import FileReader
from kestrel.scroll.writer_file import NO_ITEMS, Counts, WriterFile
from kestrel.scroll.writer_index import count_in_ranges, count_up_to

OpenFile: TypeAlias = Callable[[bytes], AbstractContextManager[FileReader]]
"""A function that opens a writer file by its name for reading. It raises OSError."""


def count_remaining(
    target_reader: bytes,
    after_id: int,
    done: Sequence[tuple[int, int]],
    files: Iterable[WriterFile],
    open_file: OpenFile,
) -> Counts:
    """Return the counts of a reader's items after `after_id` in `files`, without those in the sorted ranges `done`.

    Raise `HintMismatch` if a file does not match its index, or OSError.
    """
    total = NO_ITEMS
    for file in files:
        if file.last_id <= after_id:
            continue
        holes = list(_holes(max(file.first_id, after_id + 1), file.last_id, done))
        if holes == [(file.first_id, file.last_id)]:
            total = total.plus(file.tally.of(target_reader))
        elif holes:
            with open_file(file.file_name) as reader:
                total = total.plus(_remaining_in(reader, file, target_reader, holes))
    return total


def _holes(first_id: int, last_id: int, done: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of ids from `first_id` to `last_id` that are in none of the sorted ranges `done`."""
    for index in range(bisect_left(done, first_id, key=itemgetter(1)), len(done)):
        first, last = done[index]
        if first > last_id:
            break
        if first > first_id:
            yield first_id, first - 1
        first_id = last + 1
    if first_id <= last_id:
        yield first_id, last_id


def _remaining_in(reader: FileReader, file: WriterFile, target_reader: bytes, holes: list[tuple[int, int]]) -> Counts:
    """Return the number and bytes of `target_reader`'s items in the sorted id ranges `holes` of a writer file.

    Small holes after the same mark are counted in one pass. A hole with a mark inside is counted with the totals at
    marks.
    """
    total = NO_ITEMS
    nearby: list[tuple[int, int]] = []
    for first, last in holes:
        # A hole with a mark inside is counted by marks.
        if file.before(last).item_id > file.before(first).item_id:
            counts = count_up_to(reader, file, target_reader, last).minus(
                count_up_to(reader, file, target_reader, first - 1)
            )
            total = total.plus(counts)
            continue
        if nearby and file.before(first).offset != file.before(nearby[0][0]).offset:
            total = total.plus(count_in_ranges(reader, file, target_reader, nearby))
            nearby = []
        nearby.append((first, last))
    return total.plus(count_in_ranges(reader, file, target_reader, nearby)) if nearby else total
