"""The work of an import task: write journal files of some queues under temporary names, and verify them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kestrel.disk.files import Disk
from kestrel.journal.fileset import JournalFile, JournalFileKind, temporary_name
from kestrel.journal.records import encode_item
from kestrel.tools.convert.resumable_files import ResumableFiles
from kestrel.tools.convert.targets import RewrittenFile
from kestrel.tools.files.snapshot_files import JournalSnapshot
from kestrel.tools.formatting import show_queue
from kestrel.tools.qpack.packing import ItemsDigest, JournalInspection
from kestrel.tools.tool_runner import ToolFailed, explain_os_error

WRITTEN: Final = StructType(
    [
        StructField("queue", StringType(), False),
        StructField("number", LongType(), False),
        StructField("items", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("problem", StringType(), True),
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
        """Write the next item. Raises OSError or `ToolFailed`."""
        if row.position is not None and row.position == self._position:
            raise ToolFailed(
                f"queue {show_queue(self._name)}: two items have the position {row.position}: import one export at a"
                " time"
            )
        self._position = row.position
        record = encode_item(row.data, row.add_ms, row.expiry_ms)
        self._rewritten.put(record, row.errors)
        self._sum.add(record, row.errors)

    def finished(self) -> pa.RecordBatch:
        """Make the file durable, read it back, and return its row. Raises OSError or `ToolFailed`."""
        self._files.finish()
        name = self._name
        file = JournalFile(name, JournalFileKind.TEMPORARY, self._number, temporary_name(name, self._number))
        with JournalSnapshot(self._disk, self._writing.folder, name, [file]) as journal:
            inspected = JournalInspection(journal, self._writing.now_ms, may_show_progress=False)
        if inspected.damaged or (inspected.items, inspected.digest) != (self._sum.items, self._sum.digest):
            raise ToolFailed(
                f"queue {show_queue(name)}: the new file differs from what was written to it, so nothing is imported;"
                " please report it"
            )
        return _batch(self.spelled, self._number, self._sum.items, self._file.size, None)


def _batch(queue: str, number: int, items: int, size: int, problem: str | None) -> pa.RecordBatch:
    row: dict[str, Any] = {"queue": queue, "number": number, "items": items, "bytes": size, "problem": problem}
    return pa.RecordBatch.from_pylist([row], to_arrow_schema(WRITTEN, timezone="UTC"))
