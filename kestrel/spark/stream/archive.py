"""A stream source that tails an archive: it reads each file that a server moves there exactly once.

An archive has no usable order. Several threads move files, and a failed move is tried again later. A queue may be made
again, and its numbers may start lower after a clock change or on another server. Modification times are not reliable
either. So the stream writes the files that it saw to an index. An offset is the number of index entries that were
read. A batch is a run of index entries, and is the same after any restart. This requires an index as durable as the
checkpoint, and two properties of the archive:

- A name that begins with ``archive~`` belongs to a complete file. A file that is being copied has another name.
- A file is identified by its name and length, and the archive never appends to it. After a crash the server may copy
  the same file again, or may take it back, append to it and archive it again. The stream then reads only the new part.
  A file of a known name that is shorter, or begins differently, is a new file and is read from its start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import groupby, takewhile
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.journal import fileset as journals
from kestrel.scroll import fileset as scrolls
from kestrel.spark.options import SourceFailed
from kestrel.spark.stream.arrivals import Arrival, Arrivals
from kestrel.spark.table.files import ARCHIVE_PREFIX, archived, plan_file
from kestrel.spark.table.options import ArchiveOptions, JournalLocation, find_locations
from kestrel.spark.table.planned_file import IdentifiedReader, snapshot_file
from kestrel.spark.table.reader import SliceReader
from kestrel.spark.table.slices import FileSlice, ReadTask, group_slices
from kestrel.tools.files.formats import Format, format_of
from kestrel.tools.formatting import show_path
from kestrel.tools.tool_runner import explain_os_error

_LOOKED_INTO: Final = 100
"""Limit of the files per folder that are checked for signs of a running server."""

_READ_LATER: Final = "start the stream again to resume from there"

_GO_ON: Final = 'option("ignoreMissingFiles", "true") skips it'


class ArchiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader that finds new files and assigns them to tasks. Only `read` runs outside the driver.

    Methods raise `SourceFailed`.
    """

    def __init__(self, options: ArchiveOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._disk = Disk()
        self._arrivals = Arrivals(options.index)
        self._all_now: int | None = None
        self._initial: dict[str, Any] | None = None
        self._listed: dict[bytes, dict[bytes, int]] = {}
        """Inode numbers of the files at the last listing, by folder and file name."""

    # Offsets.

    def initialOffset(self) -> dict[str, Any]:
        """Return the number of index entries before the start of a new stream."""
        if self._initial is None:
            self._catch_up()
            if self._options.start_ms:
                self._see()
            self._initial = self._offset(sum(1 for _ in takewhile(self._is_before_start, self._arrivals.files)))
        return self._initial

    def _is_before_start(self, arrival: Arrival) -> bool:
        """Return True if the file has no item that was put at or after the start of a new stream, or was deleted."""
        if not self._options.start_ms:
            return False
        try:
            return os.stat(arrival.folder + b"/" + arrival.file_name).st_mtime * 1000 < self._options.start_ms
        except FileNotFoundError:
            return True

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.most_files)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Look for new files and return the end of the next batch."""
        if self._all_now is None:
            self._see()
        first = self._files_of(start)
        last = len(self._arrivals) if self._all_now is None else max(first, self._all_now)
        end = self._offset(min(last, first + limit.max_files) if isinstance(limit, ReadMaxFiles) else last)
        if self._options.start_ms and start == self._initial:
            end["first"] = first  # a restart must not find a later start
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset after all known files, or None before the index is read."""
        return self._offset(len(self._arrivals)) if self._arrivals.id else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the stream to the files that are in the archive now."""
        self._see()
        self._all_now = len(self._arrivals)

    def _offset(self, files: int) -> dict[str, Any]:
        return {"index": self._arrivals.id, "files": files}

    def _files_of(self, offset: Mapping[str, Any]) -> int:
        index_id, files = offset.get("index"), offset.get("files")
        if index_id != self._arrivals.id or not isinstance(files, int) or not 0 <= files <= len(self._arrivals):
            raise SourceFailed(
                f"the checkpoint is not of the index {self._options.index}, or of a later state of it: restore the"
                " index that was beside it, or start with a new checkpoint and a new index, which reads the whole"
                " archive again"
            )
        return files

    def _catch_up(self) -> None:
        try:
            self._arrivals.catch_up()
        except OSError as error:
            raise SourceFailed(f"the index cannot be read and written: {explain_os_error(error)}") from None

    # New files.

    def _see(self) -> None:
        """Append all new files to the index."""
        table = self._options.table
        try:
            with self._arrivals.locked() as append:
                new: list[Arrival] = []
                listed: dict[bytes, dict[bytes, int]] = {}
                for place in find_locations(table.paths, table.server):
                    self._check_place(place)
                    listed[place.folder] = _archived_in(place.folder)
                    new += self._new_in(place, listed[place.folder])
                append(sorted(new, key=lambda each: (not self._is_before_start(each), *_by_number(each))))
                self._listed = listed
        except OSError as error:
            raise SourceFailed(explain_os_error(error)) from None

    def _check_place(self, place: JournalLocation) -> None:
        """Raise `SourceFailed` for a single file, or for a folder in which a server may be running."""
        if place.file_name is not None:
            shown = show_path(place.folder + b"/" + place.file_name)
            raise SourceFailed(f"{shown} is a file: name the folder of an archive, or read the file as a table")
        if place.folder in self._listed:
            return
        for name in [*filter(_may_be_live, self._disk.list_files(place.folder))][:_LOOKED_INTO]:
            if self._is_live(place.folder + b"/" + name):
                raise SourceFailed(
                    f"{place.shown_folder} has queues of a server that may be running: a stream reads only an archive;"
                    " use spark.read for the files of live queues"
                )

    def _is_live(self, path: bytes) -> bool:
        try:
            return self._disk.length(path) > 0 and format_of(self._disk, path) is not Format.NEITHER
        except OSError:  # the file is gone or is not a queue file
            return False

    def _new_in(self, place: JournalLocation, listed: dict[bytes, int]) -> Iterator[Arrival]:
        """Yield files with new names, and known files whose length has changed."""
        before = self._listed.get(place.folder, {})
        changed = [name for name, number in listed.items() if before.get(name) != number]
        known = {name: arrival for name in changed if (arrival := self._arrivals.known(place.folder, name)) is not None}
        groups = archived(self._disk, place.folder, (name for name in changed if name not in known)).values()
        wanted = (part.file_name for group in groups if self._is_wanted(group.journal) for part in group.parts)
        for name in (*known, *wanted):
            try:
                arrival = self._looked_at(place, name, known.get(name))
            except FileNotFoundError:  # the archive is being cleaned
                del listed[name]
                continue
            if arrival is not None:
                yield arrival

    def _is_wanted(self, journal: str) -> bool:
        """Return True if the pattern can match the queue or a child: an archived file does not name its readers."""
        queue = self._options.table.queue
        return queue is None or fnmatchcase(journal, queue) or queue.startswith(journal + "+")

    def _looked_at(self, place: JournalLocation, file_name: bytes, known: Arrival | None) -> Arrival | None:
        """Return the arrival of a new or changed file, or None if its length is unchanged. Raises FileNotFoundError."""
        path = place.folder + b"/" + file_name
        if known is not None and self._disk.length(path) == known.size:
            return None
        look = snapshot_file(self._disk, path)
        start = 0
        if known is not None and look.size > known.size:
            with IdentifiedReader(self._disk, path) as reader:
                start = known.size if reader.sample(known.size) == known.sample else 0
        return Arrival(place.server, place.folder, file_name, start, look.size, look.sample)

    # Batches.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks that read the files that arrived between `start` and `end`.

        A file is not split: one task reads all of it, or all that it has grown by. A task may read several files.
        Raises `SourceFailed` if a file cannot be read, or was deleted and missing files are not ignored.
        """
        self._catch_up()
        table = self._options.table
        try:
            first = end.get("first", self._files_of(start))
            slices = [*self._slices(self._arrivals.files[first : self._files_of(end)])]
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
                    # Earlier files of the journal may arrive later, so the plan has no order.
                    file = plan_file(self._disk, JournalLocation(server, folder), group.format, group.journal, part)
                except FileNotFoundError:
                    if self._options.ignores_missing:
                        continue
                    shown = show_path(folder + b"/" + each.file_name)
                    raise SourceFailed(f"{shown} was deleted before it was read: {_GO_ON}") from None
                yield FileSlice(replace(file, size=each.size, sample=each.sample), each.start, each.size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. An unreadable file fails the batch, because its rows would be lost otherwise."""
        slices = partition.slices if isinstance(partition, ReadTask) else ()  # Spark adds one if there is none
        ways_out = {"unreadable": _READ_LATER}
        if not self._options.ignores_missing:
            ways_out["vanished"] = _GO_ON
        schema = to_arrow_schema(self._schema, timezone="UTC")
        reading = SliceReader(schema, is_failfast=self._options.table.is_failfast, ways_out=ways_out)
        return reading.records(slices)


def _archived_in(folder: bytes) -> dict[bytes, int]:
    """Return the inode numbers of the archived files in a folder, read from the listing without a stat."""
    with os.scandir(folder) as entries:
        return {
            entry.name: entry.inode() for entry in entries if entry.name.startswith(ARCHIVE_PREFIX) and entry.is_file()
        }


def _may_be_live(file_name: bytes) -> bool:
    """Return True if the name is that of a journal or scroll file in a server's folder."""
    return scrolls.parse_file_name(file_name) is not None or journals.parse_file_name(file_name) is not None


def _by_number(arrival: Arrival) -> tuple[int, bytes, bytes]:
    """Return a sort key that puts files seen together in the order in which they were begun."""
    file = scrolls.parse_file_name(arrival.file_name.removeprefix(ARCHIVE_PREFIX))
    return 0 if file is None else file.number, arrival.file_name, arrival.folder
