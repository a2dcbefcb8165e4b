"""The target folder of an import: its lock, and its new queues, which appear together or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kestrel.disk.files import Disk
from kestrel.journal.fileset import JournalFile, JournalFileKind, current_name, parse_file_name, temporary_name
from kestrel.journal.records import ADDX_HEADER_BYTES, encode_item
from kestrel.server.startup_errors import EX_CANNOT_CREATE
from kestrel.spark.columns import struct_of
from kestrel.storage.folder_resources import kind_of
from kestrel.tools.convert.targets import JournalTarget, ResumableFiles, RewrittenFile
from kestrel.tools.files.folder import Folder, locked_folder
from kestrel.tools.files.snapshot_files import ItemsDigest, JournalSnapshot
from kestrel.tools.formatting import count, show_path, show_queue, show_size
from kestrel.tools.packing import JournalInspection
from kestrel.tools.progress import no_progress
from kestrel.tools.tool_runner import EX_USAGE, ToolFailed, explain_os_error

_MOST_SHOWN: Final = 10


class ImportTarget:
    """A folder of journals that receives imported queues. Methods raise `ToolFailed` and OSError."""

    def __init__(self, disk: Disk, path: bytes, number: int) -> None:
        self._disk = disk
        self.path = path
        self._target = JournalTarget(disk, path, number)

    def check(self, queues: Iterable[bytes] = ()) -> None:
        """Check that the path is free, or is a folder of this user that has no scrolls and none of these queues."""
        path, shown = self.path, show_path(self.path)
        if not os.path.lexists(path):
            return
        if not os.path.isdir(path):
            raise ToolFailed(f"{shown} exists and is not a folder: name another one", EX_USAGE)
        owner = os.stat(path).st_uid
        if owner != os.geteuid():
            raise ToolFailed(
                f"the folder {shown} belongs to user {owner}, and the new files would not: run this as that user"
                f" (sudo -u '#{owner}' kestrel-fleet ...)",
                EX_CANNOT_CREATE,
            )
        folder = Folder(self._disk, path)
        noted = kind_of(self._disk, path)
        if noted not in (None, JournalTarget.kind) or folder.scrolls():
            raise ToolFailed(
                f"the folder {shown} has the format {noted or 'scroll'}: import into a new folder, and convert that"
                " (kestrel-convert journal:NEW scroll:OTHER)",
                EX_USAGE,
            )
        there = sorted(folder.journals().keys() & set(queues))
        if there:
            raise ToolFailed(
                f"the folder {shown} has {_some(there)} already: import into another folder, or choose others with"
                " --queue, or delete what is there with its server",
                EX_USAGE,
            )

    def check_room(self, items: int, data_bytes: int) -> None:
        """Check that the disk has room for this number of items and bytes of data."""
        needed, free = data_bytes + items * ADDX_HEADER_BYTES, self._disk.free_bytes(self.path)
        if needed > free:
            raise ToolFailed(
                f"the folder {show_path(self.path)} needs {show_size(needed)} more, and its disk has"
                f" {show_size(free)}: make room, or name a folder on another disk",
                EX_CANNOT_CREATE,
            )

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Create and lock the folder for the context, and delete the temporary files of an interrupted import."""
        try:
            self._disk.make_folder(self.path)
        except OSError as error:
            sentence = f"the folder {show_path(self.path)} cannot be used: {explain_os_error(error)}"
            raise ToolFailed(sentence, EX_CANNOT_CREATE) from error
        with locked_folder(self._disk, self.path, "stop it first, or import into another folder"):
            self._target.make()
            self.erase_temporary()
            yield

    def erase_temporary(self) -> None:
        """Delete unpublished files, which belong to no queue."""
        for name in self._disk.list_files(self.path):
            file = parse_file_name(name)
            if file is not None and file.kind is JournalFileKind.TEMPORARY:
                self._disk.erase(self.path + b"/" + name)

    def publish(self, files: Sequence[tuple[bytes, int]]) -> None:
        """Rename the temporary files, which must be complete and durable, to those of the queues.

        `files` has the name of each queue and the number of its temporary file. None of the queues may exist before. If
        this raises, none exists afterwards, or the error names those that do.
        """
        disk, path = self._disk, self.path
        for queue, number in files:
            if not disk.is_there(path + b"/" + temporary_name(queue, number)):
                raise ToolFailed(
                    f"the workers wrote to a folder {show_path(path)} that this machine does not see: name a folder"
                    " that all of them share"
                )
        self._target.sync()
        begun: list[bytes] = []
        try:
            for queue, number in files:
                begun.append(queue)
                disk.rename(path + b"/" + temporary_name(queue, number), path + b"/" + current_name(queue))
            self._target.sync()
        except BaseException as error:
            self._take_back(begun, error)
            raise

    def _take_back(self, queues: Sequence[bytes], error: BaseException) -> None:
        """Delete these new queues; the folder is still locked. Raises `ToolFailed` with the queues that remain."""
        left = []
        for queue in queues:
            path = self.path + b"/" + current_name(queue)
            try:
                self._disk.erase(path)
            except OSError:
                if self._disk.is_there(path):
                    left.append(queue)
        if left:
            why = explain_os_error(error) if isinstance(error, OSError) else str(error) or type(error).__name__
            raise ToolFailed(
                f"the import failed halfway ({why}), and the folder {show_path(self.path)} still has {_some(left)}"
                " of it: delete the queues with a server, and import again"
            ) from error
        with suppress(OSError):
            self._target.sync()


def _some(names: Sequence[bytes]) -> str:
    shown = ", ".join(show_queue(name) for name in names[:_MOST_SHOWN])
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{'the queue' if len(names) == 1 else count(len(names), 'queue')} {shown}{more}"


WRITTEN: Final = StructType(
    [
        *struct_of(queue=StringType(), number=LongType(), items=LongType(), bytes=LongType()),
        StructField("problem", StringType()),
    ]
)
"""One row for each queue: the number and contents of its temporary file, or the problem that prevented it."""


@dataclass(frozen=True, slots=True)
class ImportWriter:
    """The settings of the import for its tasks. The rows of a queue arrive together and in order."""

    folder: bytes
    number: int
    """Lowest number of the temporary files."""
    now_ms: int
    fronts: Mapping[str, int]
    """Number of items up to the last one with errors, for each queue that has errors."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the queues of one task. An error becomes a row, and the remaining queues are not written."""
        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()  # another attempt of the task may still be running
        yield from self.write(batches, self.number + attempt, Disk())

    def write(self, batches: Iterable[pa.RecordBatch], number: int, disk: Disk) -> Iterator[pa.RecordBatch]:
        """Write the queues to temporary files with that number, and yield a row for each."""
        queue: _Queue | None = None
        try:
            for row in _rows(batches):
                if queue is None or queue.spelled != row.queue:
                    if queue is not None:
                        yield queue.finished()
                    queue = _Queue(disk, self, number, row.queue)
                queue.put(row)
            if queue is not None:
                yield queue.finished()
        except (OSError, ToolFailed) as error:
            problem = explain_os_error(error) if isinstance(error, OSError) else str(error)
            yield _batch("" if queue is None else queue.spelled, number, 0, 0, problem)


class _ImportRow(NamedTuple):
    """An item to write."""

    queue: str
    position: int | None
    add_ms: int
    expiry_ms: int
    errors: int
    data: bytes


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_ImportRow]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _ImportRow._fields]
        yield from map(_ImportRow._make, zip(*columns, strict=True))


class _Queue:
    """A queue while its items are being written."""

    def __init__(self, disk: Disk, writing: ImportWriter, number: int, spelled: str) -> None:
        self.spelled = spelled
        self._disk = disk
        self._writing = writing
        self._number = number
        self._name = spelled.encode("latin-1")
        self._files = ResumableFiles(disk, writing.folder)
        self._file = self._files.file(temporary_name(self._name, number))
        self._rewritten = RewrittenFile(self._file, writing.fronts.get(spelled, 0))
        self._sum = ItemsDigest()
        self._position: int | None = None

    def put(self, row: _ImportRow) -> None:
        if row.position is not None and row.position == self._position:
            raise ToolFailed(
                f"queue {show_queue(self._name)}: two items have the position {row.position}: import one export at a"
                " time"
            )
        self._position = row.position
        record = encode_item(row.data, row.add_ms, row.expiry_ms)
        self._rewritten.put(record, row.errors)
        self._sum.add(record, len(row.data), row.errors)

    def finished(self) -> pa.RecordBatch:
        """Make the file durable, read it back, and return its row. Raises OSError or `ToolFailed`."""
        self._files.finish()
        name = self._name
        file = JournalFile(name, JournalFileKind.TEMPORARY, self._number, temporary_name(name, self._number))
        with JournalSnapshot(self._disk, self._writing.folder, name, [file]) as journal:
            inspected = JournalInspection(journal, self._writing.now_ms, no_progress)
        if inspected.damaged or (inspected.items, inspected.digest) != (self._sum.items, self._sum.digest):
            raise ToolFailed(
                f"queue {show_queue(name)}: the new file differs from what was written to it, so nothing is imported;"
                " please report it"
            )
        return _batch(self.spelled, self._number, self._sum.items, self._file.size, None)


def _batch(queue: str, number: int, items: int, size: int, problem: str | None) -> pa.RecordBatch:
    row: dict[str, Any] = {"queue": queue, "number": number, "items": items, "bytes": size, "problem": problem}
    return pa.RecordBatch.from_pylist([row], to_arrow_schema(WRITTEN, timezone="UTC"))
