"""Which tasks read which parts of which files: large files are split where records begin, small ones go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.journal.run_cursor import JournalRunCursor
from kestrel.scroll.item_cursor import ScrollItemCursor
from kestrel.scroll.records import WRITER_MAGIC
from kestrel.spark.table.planned_file import PlannedFile
from kestrel.spark.table.planned_reader import PlannedReader

SMALLEST_BYTES: Final = 1024 * 1024
"""Less is not worth a task of its own, as long as there are as many tasks as are wanted."""

OPENING_BYTES: Final = 64 * 1024
"""What it costs to open a file, in bytes that are read in that time."""

_TASKS_EACH: Final = 2
"""So many for each that may run at a time: none waits long for the last one."""

_RUN: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The records of a file that begin at `start` or behind it, and before `stop`."""

    file: PlannedFile
    start: int
    stop: int

    @property
    def cost(self) -> int:
        """What it takes to read it, in bytes."""
        return self.stop - self.start + OPENING_BYTES


class ReadTask(InputPartition):
    """What one task reads, one behind the other."""

    def __init__(self, slices: Sequence[FileSlice]) -> None:
        super().__init__(None)
        self.slices = slices


def plan_tasks(
    disk: Disk, files: Sequence[PlannedFile], partition_bytes: int, parallelism: int, *, splits: bool = True
) -> list[ReadTask]:
    """Who reads what: so many tasks at least if there is that much to read, and none of much more than that size.

    Where files are not to be split, each is one task's.
    """
    whole = [FileSlice(file, 0, file.size) for file in files]
    most = _most_bytes(whole, partition_bytes, parallelism)
    return _grouped((each for file in files for each in split(disk, file, most)) if splits else whole, most)


def group_slices(slices: Sequence[FileSlice], partition_bytes: int, parallelism: int) -> list[ReadTask]:
    """The same, of what is not to be split any more."""
    return _grouped(slices, _most_bytes(slices, partition_bytes, parallelism))


def _most_bytes(slices: Iterable[FileSlice], partition_bytes: int, parallelism: int) -> int:
    total = sum(each.cost for each in slices)
    return min(partition_bytes, max(SMALLEST_BYTES, total // (_TASKS_EACH * parallelism)))


def _grouped(slices: Iterable[FileSlice], most: int) -> list[ReadTask]:
    tasks: list[ReadTask] = []
    together: list[FileSlice] = []
    cost = 0
    for each in slices:
        if together and cost + each.cost > most + OPENING_BYTES:
            tasks.append(ReadTask(together))
            together, cost = [], 0
        together.append(each)
        cost += each.cost
    return [*tasks, ReadTask(together)] if together else tasks


def split(disk: Disk, file: PlannedFile, most: int) -> Iterator[FileSlice]:
    """The file in parts of about that size. To find where records begin it is gone through, without its data.

    What cannot be read is left to who reads it: he says so.
    """
    start = 0
    if file.size > most + most // 4 and not file.is_reader:
        with suppress(OSError), PlannedReader(disk, file) as reader:
            for begin in _slice_starts(reader, file):
                if begin - start >= most and file.size - begin >= most // 4:
                    yield FileSlice(file, start, begin)
                    start = begin
    yield FileSlice(file, start, file.size)


def _slice_starts(reader: FileReader, file: PlannedFile) -> Iterable[int]:
    return _of_items(reader) if file.is_scroll else _of_runs(reader)


def _of_runs(reader: FileReader) -> Iterator[int]:
    hops = JournalRunCursor(reader, 0, reader.size, has_data=False)
    while hops.next(_RUN):
        yield hops.data_start


def _of_items(reader: FileReader) -> Iterator[int]:
    """Not between a TARGETS and the item that it is about."""
    walk = ScrollItemCursor(reader, len(WRITER_MAGIC))
    while walk.next():
        yield walk.start
        walk.run()
