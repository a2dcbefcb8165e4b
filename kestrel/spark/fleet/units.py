"""What a fleet's work is made of: units, each of which one task does, and which task does which."""

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
"""What it costs to begin with a unit, in bytes that are read in that time."""


class UnitKind(Enum):
    """What a unit is."""

    FOLDER = "folder"
    """All that is in a folder, one after the other."""
    JOURNAL = "journal"
    SCROLL = "scroll"
    """Some queues of a scroll, or all of them."""
    REST = "rest"
    """What is in a folder beside its queues, of which others see to."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is done at a time, by one task. `number` is its place among all."""

    number: int
    server: str
    folder: bytes
    kind: UnitKind
    names: tuple[bytes, ...] = ()
    """Of a journal its queue, of a scroll its stem; of a folder those of its queues, or of all of them if empty."""
    readers: tuple[bytes, ...] | None = None
    """Of a scroll: as `FoundScroll.readers`."""
    has_queues: bool = True
    """Of a rest: whether there are queues in the folder."""
    cost: int = _OPENING_BYTES
    """In bytes that are to be read."""

    @property
    def found(self) -> Found | None:
        """What it is in its folder; None for what is no single journal or scroll."""
        if self.kind is UnitKind.JOURNAL:
            return FoundJournal(self.names[0])
        return FoundScroll(self.names[0], self.readers) if self.kind is UnitKind.SCROLL else None

    def row(self, task: int) -> tuple[Any, ...]:
        """For a table: `SCHEMA`."""
        readers = None if self.readers is None else list(self.readers)
        return task, self.number, self.server, self.folder, self.kind.value, list(self.names), readers, self.has_queues

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """What `row` gave."""
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
    """The folders that these paths and patterns stand for. A file that a pattern matches is no folder.

    Raises `SourceFailed`.
    """
    for path in paths:
        if os.path.isfile(path):
            raise SourceFailed(f"{path} is a file: name the folder that it is in, and the queue with --queue")
    folders = [place for place in find_locations(paths, server) if place.file_name is None]
    if not folders:
        raise SourceFailed(f"there is no folder among {' '.join(paths)}: name folders of journals or scrolls")
    return folders


def folder_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """A unit for each folder that has one of these queues, or for all folders. Raises `SourceFailed`."""
    numbered = _of_each(disk, places, names, lambda place, here, folder: [_whole(place, here)])
    return list(numbered)


def queue_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """A unit for each journal and scroll, and one for the rest of each folder. Raises `SourceFailed`."""

    def units(place: JournalLocation, here: Sequence[bytes], folder: Folder) -> Iterator[Unit]:
        found = folder.chosen(here)
        yield from (_of_found(place, each, folder) for each in found)
        if not here:
            yield Unit(0, place.server, place.folder, UnitKind.REST, has_queues=bool(found))

    return list(_of_each(disk, places, names, units))


def reader_units(disk: Disk, places: Sequence[JournalLocation], names: Sequence[bytes]) -> list[Unit]:
    """A unit for each queue, those of scrolls apart. Raises `SourceFailed`."""

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
    """What `units` makes of each folder. One that cannot be looked into is left, whole, to a task, which says so."""
    missing = set(names)
    number = 0
    for place in places:
        try:
            planned, there = _planned(Folder(disk, place.folder), place, names, units)
            missing.difference_update(there)
        except (OSError, ToolFailed):  # also: a queue was deleted meanwhile
            planned = [_whole(place, names)]
            missing.clear()
        for unit in planned:
            yield replace(unit, number=number)
            number += 1
    if missing:
        shown = ", ".join(show_queue(name) for name in sorted(missing))
        raise SourceFailed(f"no folder has a queue {shown}: kestrel-qdump -q FOLDER lists those that are there")


def _planned(
    folder: Folder,
    place: JournalLocation,
    names: Sequence[bytes],
    units: Callable[[JournalLocation, Sequence[bytes], Folder], Iterable[Unit]],
) -> tuple[list[Unit], Sequence[bytes]]:
    """The units of one folder, and which of the queues it has."""
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
    except OSError:  # who reads it will be told
        return 0


def assign_tasks(units: Sequence[Unit], most: int) -> list[tuple[int, Unit]]:
    """Which of so many tasks does which unit: each of the largest ones goes to the task that has the least so far."""
    tasks = min(len(units), most)
    loads = [(0, task) for task in range(tasks)]
    heapify(loads)
    shared = []
    for unit in sorted(units, key=lambda each: (-each.cost, each.number)):
        load, task = loads[0]
        heapreplace(loads, (load + unit.cost, task))
        shared.append((task, unit))
    return shared
