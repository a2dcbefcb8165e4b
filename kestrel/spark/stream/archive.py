"""An archive as a stream: the files that a server with an archive moves there, each read once.

What exactly once rests on. Files do not come in the order of their numbers: several threads move them, one that could
not be moved is tried again while later ones go, a queue may be made anew, and after a clock was set back, or from
another server, numbers begin lower. Nor are their times of any use: the clock may be wrong, and whoever changes the
owner of a file, or makes a link to it, changes its time. So the stream writes down which files it saw, in its index,
and an offset is how many of them were read: it has two values, however many files there are. A batch is a run of the
index, the same after any restart. This needs an index as durable as the checkpoint, and of a server:

- A name beginning with ``archive~`` is that of a file that is whole: what is copied has another name until then.
- A file is known by its name and its length, and nothing is written to it there. After a crash the server may copy it
  again, which is nothing new; or it may have come, be back in its folder and grow: what it grew by is read when it
  comes again. A file of a known name that is shorter, or does not begin as the known one, is another one, and is read
  as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.journal import fileset as journals
from kestrel.scroll import fileset as scrolls
from kestrel.spark.failures import SourceFailed
from kestrel.spark.schemas import check_schema
from kestrel.spark.stream.archive_options import ArchiveOptions
from kestrel.spark.stream.arrivals import Arrival, Arrivals
from kestrel.spark.table.listing import ARCHIVE_PREFIX, archived, plan_file
from kestrel.spark.table.locations import JournalLocation, find_locations
from kestrel.spark.table.planned_file import IdentifiedReader, snapshot_file
from kestrel.spark.table.reader import schema_of
from kestrel.spark.table.slice_reader import SliceReader
from kestrel.spark.table.slices import FileSlice, ReadTask, group_slices
from kestrel.tools.files.formats import Format, format_of
from kestrel.tools.formatting import show_path
from kestrel.tools.tool_runner import explain_os_error

_LOOKED_INTO: Final = 100
"""So many files of a folder are looked into, to see whether a server is at work in it."""

_READ_LATER: Final = "the stream goes on from there when it is started again"

_GO_ON: Final = 'option("ignoreMissingFiles", "true") goes on without it'

_ORDER: Final = "file_order"


def archive_reader_of(options: ArchiveOptions, schema: StructType) -> ArchiveReader:
    """A reader of the columns of `schema`, which may be some of those of the table."""
    check_schema(schema, schema_of(options.table))
    return ArchiveReader(options, schema)


class ArchiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Sees what comes, and plans which task reads what. All of it but `read` happens on the driver.

    Methods raise `SourceFailed`.
    """

    def __init__(self, options: ArchiveOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._disk = Disk()
        self._arrivals = Arrivals(options.index)
        self._all_now: int | None = None
        self._listed: dict[bytes, dict[bytes, int]] = {}
        """Of each folder the files that were there when it was last listed, with their numbers in the file system."""

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:
        """Before all files that there ever were."""
        self._catch_up()
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        """As many files as the option says."""
        return ReadMaxFiles(self._options.most_files)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Behind what is there now, or behind the first of it."""
        if self._all_now is None:
            self._see()
        first = self._files_of(start)
        last = len(self._arrivals) if self._all_now is None else max(first, self._all_now)
        return self._offset(min(last, first + limit.max_files) if isinstance(limit, ReadMaxFiles) else last)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Behind all that was seen."""
        return self._offset(len(self._arrivals)) if self._arrivals.id else None

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is for the next time."""
        self._see()
        self._all_now = len(self._arrivals)

    def _offset(self, files: int) -> dict[str, Any]:
        return {"index": self._arrivals.id, "files": files}

    def _files_of(self, offset: Mapping[str, Any]) -> int:
        index_id, files = offset.get("index"), offset.get("files")
        if index_id != self._arrivals.id or not isinstance(files, int) or not 0 <= files <= len(self._arrivals):
            raise SourceFailed(
                f"the checkpoint is not of the index {self._options.index}, or of a later state of it: put back the"
                " index that was beside it, or begin a new checkpoint with a new index, which reads all that is in the"
                " archive again"
            )
        return files

    def _catch_up(self) -> None:
        try:
            self._arrivals.catch_up()
        except OSError as error:
            raise SourceFailed(f"the index cannot be read and written: {explain_os_error(error)}") from None

    # What comes.

    def _see(self) -> None:
        """Write down what is there and was not."""
        table = self._options.table
        try:
            with self._arrivals.locked() as append:
                new: list[Arrival] = []
                listed: dict[bytes, dict[bytes, int]] = {}
                for place in find_locations(table.paths, table.server):
                    self._check_place(place)
                    listed[place.folder] = _archived_in(place.folder)
                    new += self._new_in(place, listed[place.folder])
                append(sorted(new, key=_by_number))
                self._listed = listed
        except OSError as error:
            raise SourceFailed(explain_os_error(error)) from None

    def _check_place(self, place: JournalLocation) -> None:
        """Refuse what will never get a file from a server."""
        if place.file_name is not None:
            shown = show_path(place.folder + b"/" + place.file_name)
            raise SourceFailed(f"{shown} is a file, which is read as a table: a stream reads the folder of an archive")
        if place.folder in self._listed:
            return
        for name in [*filter(_may_be_live, self._disk.list_files(place.folder))][:_LOOKED_INTO]:
            if self._is_live(place.folder + b"/" + name):
                raise SourceFailed(
                    f"{place.shown_folder} has queues that a server may be at work on: a stream reads what it is done"
                    " with, from its archive; spark.read reads them as they are"
                )

    def _is_live(self, path: bytes) -> bool:
        try:
            return self._disk.length(path) > 0 and format_of(self._disk, path) is not Format.NEITHER
        except OSError:  # it has gone, or is none of ours
            return False

    def _new_in(self, place: JournalLocation, listed: dict[bytes, int]) -> Iterator[Arrival]:
        """Files of names that are not known, and those that have come again with more."""
        before = self._listed.get(place.folder, {})
        changed = [name for name, number in listed.items() if before.get(name) != number]
        known = {name: arrival for name in changed if (arrival := self._arrivals.known(place.folder, name)) is not None}
        groups = archived(self._disk, place.folder, (name for name in changed if name not in known)).values()
        wanted = (part.file_name for group in groups if self._is_wanted(group.journal) for part in group.parts)
        for name in (*known, *wanted):
            try:
                arrival = self._looked_at(place, name, known.get(name))
            except FileNotFoundError:  # somebody cleans the archive
                del listed[name]
                continue
            if arrival is not None:
                yield arrival

    def _is_wanted(self, journal: str) -> bool:
        """A file does not say which children were to read it, so that those of any child's parent are wanted."""
        queue = self._options.table.queue
        return queue is None or fnmatchcase(journal, queue) or queue.startswith(journal + "+")

    def _looked_at(self, place: JournalLocation, file_name: bytes, known: Arrival | None) -> Arrival | None:
        """None where it is as it was. Raises FileNotFoundError."""
        path = place.folder + b"/" + file_name
        if known is not None and self._disk.length(path) == known.size:
            return None
        look = snapshot_file(self._disk, path)
        start = 0
        if known is not None and look.size > known.size:
            with IdentifiedReader(self._disk, path) as reader:
                start = known.size if reader.sample(known.size) == known.sample else 0
        return Arrival(place.server, place.folder, file_name, start, look.size, look.identity.sample)

    # Batches.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Who reads what. No file is read for that: each is one task's."""
        self._catch_up()
        table = self._options.table
        try:
            slices = [*self._slices(self._arrivals.files[self._files_of(start) : self._files_of(end)])]
        except OSError as error:
            raise SourceFailed(explain_os_error(error)) from None
        return group_slices(slices, table.partition_bytes, table.parallelism)

    def _slices(self, arrivals: Iterable[Arrival]) -> Iterator[FileSlice]:
        in_order = sorted(arrivals, key=lambda each: (each.folder, each.server))
        for (folder, server), each_folder in groupby(in_order, key=lambda each: (each.folder, each.server)):
            came = list(each_folder)
            groups = archived(self._disk, folder, {each.file_name for each in came}).values()
            parts = {part.file_name: (group, part) for group in groups for part in group.parts}
            for each in came:
                group, part = parts[each.file_name]
                try:
                    file = plan_file(self._disk, JournalLocation(server, folder), group.format, group.journal, part)
                except FileNotFoundError:
                    if self._options.ignores_missing:
                        continue
                    shown = show_path(folder + b"/" + each.file_name)
                    raise SourceFailed(f"{shown} went from the archive before it was read: {_GO_ON}") from None
                identity = file.identity._replace(sample=each.sample)
                yield FileSlice(replace(file, size=each.size, identity=identity), each.start, each.size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What a task reads. A file that cannot be read fails the batch: else its rows would never come."""
        slices = partition.slices if isinstance(partition, ReadTask) else ()  # Spark makes one where there is none
        ways_out = {"unreadable": _READ_LATER}
        if not self._options.ignores_missing:
            ways_out["vanished"] = _GO_ON
        schema = to_arrow_schema(self._schema, timezone="UTC")
        reading = SliceReader(schema, is_failfast=self._options.table.is_failfast, ways_out=ways_out)
        return map(_without_order, reading.records(slices))


def _archived_in(folder: bytes) -> dict[bytes, int]:
    """The files there of such names, with their numbers in the file system: a listing has these without a look."""
    with os.scandir(folder) as entries:
        return {
            entry.name: entry.inode() for entry in entries if entry.name.startswith(ARCHIVE_PREFIX) and entry.is_file()
        }


def _may_be_live(file_name: bytes) -> bool:
    """Whether a queue's file may have that name, in the folder where it was written."""
    return scrolls.parse_file_name(file_name) is not None or journals.parse_file_name(file_name) is not None


def _by_number(arrival: Arrival) -> tuple[int, bytes, bytes]:
    """Of what is seen at once, what was begun first comes first."""
    file = scrolls.parse_file_name(arrival.file_name.removeprefix(ARCHIVE_PREFIX))
    return 0 if file is None else file.number, arrival.file_name, arrival.folder


def _without_order(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Which files of its journal are to come before this one nobody knows yet."""
    place = batch.schema.get_field_index(_ORDER)
    if place < 0:
        return batch
    field = batch.schema.field(place)
    return batch.set_column(place, field, pa.nulls(batch.num_rows, field.type))
