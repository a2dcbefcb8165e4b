"""Division of files into tasks: large files are split between records, and small ones share a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.journal.cursor import JournalCursor
from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.records import WRITER_MAGIC
from kestrel.spark.table.options import PARTITION_BYTES
from kestrel.spark.table.planned_file import PlannedFile, PlannedReader

SMALLEST_BYTES: Final = 1024 * 1024
"""Lower bound of the task size that follows from the parallelism."""

OPENING_BYTES: Final = 64 * 1024
"""Cost of opening a file, as a number of bytes read in the same time."""

_TASKS_EACH: Final = 2
"""Tasks per parallel task, so that the last task does not delay the job for long."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The records of a file that begin at or after `start` and before `stop`."""

    file: PlannedFile
    start: int
    stop: int

    @property
    def cost(self) -> int:
        """Cost of reading the slice, in bytes."""
        return self.stop - self.start + OPENING_BYTES


@dataclass
class ReadTask(InputPartition):
    """A task that reads slices one after another."""

    slices: Sequence[FileSlice]


def plan_tasks(
    disk: Disk, files: Sequence[PlannedFile], partition_bytes: int | None, parallelism: int, *, splits: bool = True
) -> list[ReadTask]:
    """Return tasks of at most about `partition_bytes`, and about twice `parallelism` tasks if there is enough to read.

    To split a file, its headers are read. So without `partition_bytes` only files larger than the share of a task are
    split. Without `splits` a single task reads each whole file.
    """
    whole = [FileSlice(file, 0, file.size) for file in files]
    share = _share_of(whole, parallelism)
    most = min(share, partition_bytes or share)
    slices = (each for file in files for each in split(disk, file, most)) if splits else whole
    return _grouped(slices, min(share, partition_bytes or PARTITION_BYTES))


def group_slices(slices: Sequence[FileSlice], partition_bytes: int | None, parallelism: int) -> list[ReadTask]:
    """Return tasks like `plan_tasks`, for slices that are not split further."""
    return _grouped(slices, min(_share_of(slices, parallelism), partition_bytes or PARTITION_BYTES))


def _share_of(slices: Iterable[FileSlice], parallelism: int) -> int:
    """Return the bytes of a task if all tasks are equal."""
    return max(SMALLEST_BYTES, sum(each.cost for each in slices) // (_TASKS_EACH * parallelism))


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
    """Yield slices of about `most` bytes. The file is read without its data to find the starts of records.

    An unreadable file becomes one slice, and its reader reports the error.
    """
    start = 0
    if file.size > most + most // 4 and not file.is_reader:
        with suppress(OSError), PlannedReader(disk, file) as reader:
            for begin in _of_items(reader) if file.is_scroll else _of_runs(reader):
                if begin - start >= most and file.size - begin >= most // 4:
                    yield FileSlice(file, start, begin)
                    start = begin
    yield FileSlice(file, start, file.size)


def _of_runs(reader: FileReader) -> Iterator[int]:
    hops = JournalCursor(reader, has_data=False)
    while hops.next():
        yield hops.data_start + hops.starts[0]


def _of_items(reader: FileReader) -> Iterator[int]:
    """Yield the starts of items, including a preceding TARGETS record."""
    cursor = ScrollCursor(reader, WRITER_MAGIC, has_data=False)
    while cursor.next():
        for item in cursor.items_of_run():
            yield item.offset
            break
