"""Units of work for a fleet job, and the Spark job that runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.spark.options import SourceFailed
from kestrel.spark.table.options import JournalLocation, find_locations
from kestrel.spark.task_map import map_in_tasks
from kestrel.tools.files.folder import Folder, Found, FoundScroll
from kestrel.tools.formatting import show_queue
from kestrel.tools.tool_runner import ToolFailed

_OPENING_BYTES: Final = 64 * 1024
"""Cost of starting a unit, as a number of bytes read in the same time."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work for one task: a journal, a scroll, a whole folder, or the rest of a folder."""

    number: int
    server: str
    folder: bytes
    found: Found | None = None
    """The journal or scroll; None for the other kinds."""
    names: tuple[bytes, ...] = ()
    """Whole folder only: its selected queues, which are handled one after another, or empty for all."""
    is_rest: bool = False
    """True for the files of a folder that do not belong to its queues, which are other units."""
    has_queues: bool = True
    """Rest only: True if the folder has queues."""
    cost: int = _OPENING_BYTES
    """Estimated bytes to read."""


def folders_of(paths: Sequence[str], server: str | None) -> list[JournalLocation]:
    """Return the folders that the paths and patterns match. Files that a pattern matches are skipped.

    Raises `SourceFailed` for the path of a file, or if there is no folder.
    """
    for path in paths:
        if os.path.isfile(path):
            raise SourceFailed(f"{path} is a file: name the folder that it is in, and the queue with --queue")
    folders = [place for place in find_locations(paths, server) if place.file_name is None]
    if not folders:
        raise SourceFailed(f"there is no folder among {' '.join(paths)}: name folders of journals or scrolls")
    return folders


def folder_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """Return a unit for each folder that has one of these queues; without names, for all. Raises `SourceFailed`."""
    return _plan(disk, places, names, lambda place, here, folder: [_whole(place, here)])


def queue_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """Return a unit for each journal and scroll, and without names one for the rest of each folder.

    Raises `SourceFailed`.
    """

    def units(place: JournalLocation, here: Sequence[bytes], folder: Folder) -> Iterator[Unit]:
        found = folder.chosen(here)
        yield from (_of_found(place, each, folder) for each in found)
        if not here:
            yield Unit(0, place.server, place.folder, is_rest=True, has_queues=bool(found))

    return _plan(disk, places, names, units)


def reader_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """Return a unit for each queue; each queue of a scroll is a separate unit. Raises `SourceFailed`."""

    def units(place: JournalLocation, here: Sequence[bytes], folder: Folder) -> Iterator[Unit]:
        return (_of_found(place, found, folder) for found in found_readers(folder, here))

    return _plan(disk, places, names, units)


def found_readers(folder: Folder, names: Sequence[bytes]) -> Iterator[Found]:
    """Yield the journals and scrolls of the named queues, or of all, with the queues of a scroll one by one."""
    for found in folder.chosen(names):
        if isinstance(found, FoundScroll):
            readers = found.readers or tuple(queue.reader for queue in folder.scroll(found).queues)
            yield from (FoundScroll(found.stem, (reader,)) for reader in readers)
        else:
            yield found


def _plan(
    disk: Disk,
    places: Sequence[JournalLocation],
    names: Sequence[bytes],
    units: Callable[[JournalLocation, Sequence[bytes], Folder], Iterable[Unit]],
) -> list[Unit]:
    """Return the numbered units of each folder. An unreadable folder becomes one unit, whose task reports the error."""
    planned: list[Unit] = []
    missing = set(names)
    for place in places:
        try:
            folder = Folder(disk, place.folder)
            there = folder.queue_names() if names else frozenset[bytes]()
            here = [name for name in names if name in there]
            of_folder = list(units(place, here, folder)) if here or not names else []
            missing.difference_update(here)
        except (OSError, ToolFailed):  # a queue may also have been deleted meanwhile
            of_folder = [_whole(place, names)]
            missing.clear()
        planned += of_folder
    if missing:
        shown = ", ".join(show_queue(name) for name in sorted(missing))
        raise SourceFailed(f"no folder has a queue {shown}: kestrel-qdump -q FOLDER lists the queues")
    return [replace(unit, number=number) for number, unit in enumerate(planned)]


def _whole(place: JournalLocation, names: Sequence[bytes]) -> Unit:
    cost = _OPENING_BYTES
    with suppress(OSError), os.scandir(place.folder) as entries:
        cost += sum(entry.stat().st_size for entry in entries if entry.is_file())
    return Unit(0, place.server, place.folder, names=tuple(names), cost=cost)


def _of_found(place: JournalLocation, found: Found, folder: Folder) -> Unit:
    if isinstance(found, FoundScroll):
        files = folder.scroll(found).file_names
    else:
        queue = folder.journals().get(found[0])
        files = [] if queue is None else [file.file_name for file in queue.live_files()]
    cost = _OPENING_BYTES + sum(_length(folder, name) for name in files)
    return Unit(0, place.server, place.folder, found, cost=cost)


def _length(folder: Folder, file_name: bytes) -> int:
    try:
        return folder.disk.length(folder.path + b"/" + file_name)
    except OSError:  # the reading task reports it
        return 0


def map_units(
    spark: SparkSession,
    units: Sequence[Unit],
    work: Callable[[Unit, Folder], Iterable[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """Return a table of the rows that `work` makes of the units, in no order. Spark runs the work lazily."""
    return map_in_tasks(spark, units, lambda given: map_units_by_folder(given, work, Disk()), schema)


def map_units_by_folder(
    units: Iterable[Unit], work: Callable[[Unit, Folder], Iterable[pa.RecordBatch]], disk: Disk
) -> Iterator[pa.RecordBatch]:
    """Yield the batches that `work` makes of the units. Units of a folder share its listing, which may be slow."""
    folder: Folder | None = None
    for unit in sorted(units, key=lambda each: (each.folder, each.number)):
        if folder is None or folder.path != unit.folder:
            folder = Folder(disk, unit.folder)
        yield from work(unit, folder)
