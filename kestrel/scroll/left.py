"""How much a reader still has of some writer files, with as little reading as the marks allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from kestrel.disk.reader import FileReader
from kestrel.scroll.survey import NONE, Counts, WriterFile, counts_in, counts_to

OpenFile: TypeAlias = Callable[[bytes], AbstractContextManager[FileReader]]
"""Opens the writer file of that name to be read. Raises OSError."""

FEW: Final = 8
"""So many ranges are looked up one by one, more of them in one go through the file."""


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
        first_id = max(file.first_id, after_id + 1)
        ranges = [
            (max(first, first_id), min(last, file.last_id))
            for first, last in done
            if first <= file.last_id and last >= first_id
        ]
        if ranges == [(file.first_id, file.last_id)]:
            continue
        total = total.plus(file.tally.of(who))
        if first_id > file.first_id or ranges:
            with open_file(file.file_name) as reader:
                total = total.minus(counts_to(reader, file, who, first_id - 1))
                if len(ranges) > FEW:
                    total = total.minus(counts_in(reader, file, who, ranges))
                    continue
                for first, last in ranges:
                    both = counts_to(reader, file, who, last).minus(counts_to(reader, file, who, first - 1))
                    total = total.minus(both)
    return total
