"""Units of work for a fleet job, and their assignment to tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from heapq import heapify, heapreplace
from typing import Any, Final, Self

from pyspark.sql.types import ArrayType, BinaryType, BooleanType, IntegerType, StringType, StructField, StructType

from kestrel.disk.files import Disk
from kestrel.spark.failures import SourceFailed
from kestrel.spark.table.locations import JournalLocation, find_locations
from kestrel.tools.files.folder import Folder
from kestrel.tools.files.found_files import Found, FoundJournal, FoundScroll
from kestrel.tools.formatting import show_queue
from kestrel.tools.tool_runner import ToolFailed

_OPENING_BYTES: Final = 64 * 1024
"""Cost of starting a unit, as a number of bytes read in the same time."""


class UnitKind(Enum):
    """The kind of a unit."""

    FOLDER = "folder"
    """A whole folder, whose queues are handled one after another."""
    JOURNAL = "journal"
    SCROLL = "scroll"
    """Some or all queues of a scroll."""
    REST = "rest"
    """The files of a folder that do not belong to its queues, which are other units."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work for one task. `number` is its position among all units."""

    number: int
    server: str
    folder: bytes
    kind: UnitKind
    names: tuple[bytes, ...] = ()
    """Queue of a journal, or stem of a scroll; for a folder its selected queues, or empty for all."""
    readers: tuple[bytes, ...] | None = None
    """Scroll only: as `FoundScroll.readers`."""
    has_queues: bool = True
    """Kind REST only: True if the folder has queues."""
    cost: int = _OPENING_BYTES
    """Estimated bytes to read."""

    @property
    def found(self) -> Found | None:
        """The journal or scroll of the unit, or None for other kinds."""
        if self.kind is UnitKind.JOURNAL:
            return FoundJournal(self.names[0])
        return FoundScroll(self.names[0], self.readers) if self.kind is UnitKind.SCROLL else None

    def row(self, task: int) -> tuple[Any, ...]:
        """Return the unit as a row of `SCHEMA`."""
        readers = None if self.readers is None else list(self.readers)
        return task, self.number, self.server, self.folder, self.kind.value, list(self.names), readers, self.has_queues

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the unit of a row that `row` made."""
        readers = row["readers"]
        return cls(
            row["number"],
            row["server"],
            row["folder"],
            UnitKind(row["kind"]),
            tuple(row["names"]),
            None if readers is None else tuple(readers),
            row["has_queues"],
        )


SCHEMA: Final = StructType(
    [
        StructField("task", IntegerType(), False),
        StructField("number", IntegerType(), False),
        StructField("server", StringType(), False),
        StructField("folder", BinaryType(), False),
        StructField("kind", StringType(), False),
        StructField("names", ArrayType(BinaryType(), False), False),
        StructField("readers", ArrayType(BinaryType(), False), True),
        StructField("has_queues", BooleanType(), False),
    ]
)


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
    numbered = _of_each(disk, places, names, lambda place, here, folder: [_whole(place, here)])
    return list(numbered)


def queue_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """Return a unit for each journal and scroll, and without names one for the rest of each folder.

    Raises `SourceFailed`.
    """

    def units(place: JournalLocation, here: Sequence[bytes], folder: Folder) -> Iterator[Unit]:
        found = folder.chosen(here)
        yield from (_of_found(place, each, folder) for each in found)
        if not here:
            yield Unit(0, place.server, place.folder, UnitKind.REST, has_queues=bool(found))

    return list(_of_each(disk, places, names, units))


def reader_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """Return a unit for each queue; each queue of a scroll is a separate unit. Raises `SourceFailed`."""

    def units(place: JournalLocation, here: Sequence[bytes], folder: Folder) -> Iterator[Unit]:
        for found in folder.chosen(here):
            if isinstance(found, FoundScroll):
                queues = folder.scroll(found).queues
                readers = found.readers or tuple(queue.reader for queue in queues)
                for reader in readers:
                    yield _of_found(place, FoundScroll(found.stem, (reader,)), folder)
            else:
                yield _of_found(place, found, folder)

    return list(_of_each(disk, places, names, units))


def _of_each(
    disk: Disk,
    places: Sequence[JournalLocation],
    names: Sequence[bytes],
    units: Callable[[JournalLocation, Sequence[bytes], Folder], Iterable[Unit]],
) -> Iterator[Unit]:
    """Yield the numbered units of each folder. An unreadable folder becomes one unit, whose task reports the error."""
    missing = set(names)
    number = 0
    for place in places:
        try:
            planned, there = _planned(Folder(disk, place.folder), place, names, units)
            missing.difference_update(there)
        except (OSError, ToolFailed):  # a queue may also have been deleted meanwhile
            planned = [_whole(place, names)]
            missing.clear()
        for unit in planned:
            yield replace(unit, number=number)
            number += 1
    if missing:
        shown = ", ".join(show_queue(name) for name in sorted(missing))
        raise SourceFailed(f"no folder has a queue {shown}: kestrel-qdump -q FOLDER lists the queues")


def _planned(
    folder: Folder,
    place: JournalLocation,
    names: Sequence[bytes],
    units: Callable[[JournalLocation, Sequence[bytes], Folder], Iterable[Unit]],
) -> tuple[list[Unit], Sequence[bytes]]:
    """Return the units of one folder, and those of the named queues that it has."""
    if not names:
        return list(units(place, (), folder)), ()
    there = _queues_in(folder)
    here = [name for name in names if name in there]
    return list(units(place, here, folder)) if here else [], here


def _queues_in(folder: Folder) -> frozenset[bytes]:
    of_scrolls = (queue.name for scroll in folder.scrolls().values() for queue in scroll.queues)
    return frozenset([*folder.journals(), *(name for name in of_scrolls if name is not None)])


def _whole(place: JournalLocation, names: Sequence[bytes]) -> Unit:
    cost = _OPENING_BYTES
    with suppress(OSError), os.scandir(place.folder) as entries:
        cost += sum(entry.stat().st_size for entry in entries if entry.is_file())
    return Unit(0, place.server, place.folder, UnitKind.FOLDER, tuple(names), cost=cost)


def _of_found(place: JournalLocation, found: Found, folder: Folder) -> Unit:
    if isinstance(found, FoundScroll):
        files = folder.scroll(found).file_names
        kind, readers = UnitKind.SCROLL, found.readers
    else:
        queue = folder.journals().get(found[0])
        files = [] if queue is None else [file.file_name for file in queue.live_files()]
        kind, readers = UnitKind.JOURNAL, None
    cost = _OPENING_BYTES + sum(_length(folder, name) for name in files)
    return Unit(0, place.server, place.folder, kind, (found[0],), readers, cost=cost)


def _length(folder: Folder, file_name: bytes) -> int:
    try:
        return folder.disk.length(folder.path + b"/" + file_name)
    except OSError:  # the reading task reports it
        return 0


def assign_tasks(units: Sequence[Unit], most: int) -> list[tuple[int, Unit]]:
    """Assign units to at most `most` tasks: the largest units first, each to the task with the least work."""
    tasks = min(len(units), most)
    loads = [(0, task) for task in range(tasks)]
    heapify(loads)
    shared = []
    for unit in sorted(units, key=lambda each: (-each.cost, each.number)):
        load, task = loads[0]
        heapreplace(loads, (load + unit.cost, task))
        shared.append((task, unit))
    return shared
