"""The items of one queue in bounded batches, the same as those of kestrel-qdump -Q and -A."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrel.spark.fleet.columns import ITEMS, PROBLEM, TEXT_ITEMS
from kestrel.spark.fleet.units import Unit, UnitKind
from kestrel.tools.files.folder import Folder
from kestrel.tools.files.found_files import Found, FoundJournal, FoundScroll
from kestrel.tools.files.journal_contents import JournalContents
from kestrel.tools.files.scroll_contents import ScrollContents
from kestrel.tools.files.scrolls import ScrollSnapshot
from kestrel.tools.files.snapshot_files import FileReadResult, JournalSnapshot
from kestrel.tools.files.summary import damage_sentence
from kestrel.tools.formatting import show_path, spell_queue
from kestrel.tools.qdump.journal_dump import adds
from kestrel.tools.qpack.outcomes import OutcomeRemark
from kestrel.tools.tool_runner import ToolFailed, explain_os_error

MOST_ROWS: Final = 4096
"""Maximum number of rows in a batch."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of items at which a batch is full; its last item may exceed this."""


class ItemSelection(Enum):
    """The choice of the items of a queue."""

    QUEUED = "queued"
    """Items that a server would have after a restart, in order."""
    ADDED = "added"
    """All items that were ever added and are still in the files."""


class ReadItem(NamedTuple):
    """An item as read from its files."""

    data: bytes
    add_ms: int | None
    expiry_ms: int
    errors: int


def export_rows(
    unit: Unit, folder: Folder, which: ItemSelection, now_ms: int, *, is_text: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a unit's items, then of the problems of its files. `folder` is the unit's folder.

    The columns are `TEXT_ITEMS` with `is_text`, else `ITEMS`, and `problem`.
    """
    batches = Batches(unit, is_text=is_text)
    try:
        for found in _founds(unit, folder):
            yield from _of_found(batches, folder, found, which, now_ms)
            yield from batches.left()
    except OSError as error:
        batches.problem(OutcomeRemark(f"{show_path(unit.folder)}: cannot be read: {explain_os_error(error)}"))
    except ToolFailed as failed:
        batches.problem(OutcomeRemark(f"{show_path(unit.folder)}: {failed}"))
    yield from batches.problems()


def _founds(unit: Unit, folder: Folder) -> Iterator[Found]:
    """Yield the journal or scroll of the unit; for a folder each queue, those of scrolls separately."""
    if unit.found is not None:
        yield unit.found
    elif unit.kind is UnitKind.FOLDER:
        yield from _single(folder, folder.chosen(unit.names))


def _single(folder: Folder, chosen: Sequence[Found]) -> Iterator[Found]:
    for found in chosen:
        if isinstance(found, FoundScroll):
            readers = found.readers or tuple(queue.reader for queue in folder.scroll(found).queues)
            yield from (FoundScroll(found.stem, (reader,)) for reader in readers)
        else:
            yield found


def _of_found(
    batches: Batches, folder: Folder, found: Found, which: ItemSelection, now_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield full batches of the queue's items; the last items stay in `batches`."""
    try:
        with _open(folder, found) as opened:
            queue = (
                _JournalItems(opened, now_ms) if isinstance(opened, JournalSnapshot) else _ScrollItems(opened, now_ms)
            )
            batches.begin(queue.name)
            for item in queue.queued() if which is ItemSelection.QUEUED else queue.added():
                batches.add(item)
                if batches.is_full:
                    yield batches.take()
            files = queue.files
    except OSError as error:
        batches.problem(
            OutcomeRemark(f"{show_path(folder.path)}: {found.shown}: cannot be read: {explain_os_error(error)}")
        )
        return
    except ToolFailed as failed:
        batches.problem(OutcomeRemark(f"{show_path(folder.path)}: {failed}"))
        return
    if queue.name is None:
        sentence = f"{show_path(folder.path)}: {found.shown}: the name of one of its queues is unknown"
        batches.problem(OutcomeRemark(sentence, is_complaint=False))
    for read in files:
        if read.end.problem is not None:
            batches.problem(OutcomeRemark(f"{show_path(folder.path)}: {damage_sentence(read)}", read.is_damaged))


def _open(folder: Folder, found: Found) -> JournalSnapshot | ScrollSnapshot:
    if isinstance(found, FoundJournal):
        return folder.open_journal(found.queue)
    return folder.open_scroll(found) if isinstance(found, FoundScroll) else folder.open_file(found.file_name)


class _JournalItems:
    """The items of a queue with its own journal."""

    def __init__(self, journal: JournalSnapshot, now_ms: int) -> None:
        self.name: str | None = spell_queue(journal.queue)
        self._contents = JournalContents(journal, now_ms, may_show_progress=False)

    @property
    def files(self) -> Sequence[FileReadResult]:
        return self._contents.files

    def queued(self) -> Iterator[ReadItem]:
        self._contents.replay()
        for item in self._contents.items():
            yield ReadItem(item.data, item.add_ms, item.expiry_ms, item.errors)

    def added(self) -> Iterator[ReadItem]:
        for _, _, record in self._contents.records(apply_records=False):
            if adds(record):
                yield ReadItem(record.data, record.add_ms, record.expiry_ms, 0)


class _ScrollItems:
    """The items of one queue of a scroll."""

    def __init__(self, scroll: ScrollSnapshot, now_ms: int) -> None:
        name = scroll.chosen[0].name
        self.name = None if name is None else spell_queue(name)
        self._contents = ScrollContents(scroll, now_ms, may_show_progress=False)

    @property
    def files(self) -> Sequence[FileReadResult]:
        return self._contents.files

    def queued(self) -> Iterator[ReadItem]:
        """Yield the queued items. The reader file counts the errors of items redelivered after they were written."""
        counts = self._contents.queues[0].state.errors
        for item in self._contents.queued():
            errors = counts.get(item.id, max(0, item.errors))
            yield ReadItem(item.data, item.add_ms, item.expiry_ms, errors)

    def added(self) -> Iterator[ReadItem]:
        for item in self._contents.added():
            yield ReadItem(item.data, item.add_ms, item.expiry_ms, max(0, item.errors))


class Batches:
    """A builder of record batches that holds at most one batch of items."""

    def __init__(self, unit: Unit, *, is_text: bool) -> None:
        self._unit = unit
        self._is_text = is_text
        self._schema = to_arrow_schema(with_problem(is_text=is_text), timezone="UTC")
        self._queue: str | None = None
        self._position = 0
        self._items: list[ReadItem] = []
        self._bytes = 0
        self._problems: list[OutcomeRemark] = []

    def begin(self, queue: str | None) -> None:
        """Start the items of a queue, after all earlier items were taken."""
        self._queue = queue
        self._position = 0

    def add(self, item: ReadItem) -> None:
        """Add the next item of the queue."""
        self._items.append(item)
        self._bytes += len(item.data)

    def problem(self, remark: OutcomeRemark) -> None:
        """Record a problem of the files."""
        self._problems.append(remark)

    @property
    def is_full(self) -> bool:
        """True if a batch is full and should be taken."""
        return len(self._items) >= MOST_ROWS or self._bytes >= MOST_BYTES

    def take(self) -> pa.RecordBatch:
        """Remove the held items and return them as a batch."""
        items, self._items, self._bytes = self._items, [], 0
        start = self._position
        self._position += len(items)
        number = len(items)
        columns = {
            "server": pa.repeat(pa.scalar(self._unit.server, pa.string()), number),
            "folder": pa.repeat(pa.scalar(show_path(self._unit.folder), pa.string()), number),
            "queue": pa.repeat(pa.scalar(self._queue, pa.string()), number),
            "position": pa.array(range(start, start + number), pa.int64()),
            "add_ms": pa.array([item.add_ms for item in items], pa.int64()),
            "expiry_ms": pa.array([item.expiry_ms or None for item in items], pa.int64()),
            "errors": pa.array([item.errors for item in items], pa.int32()),
            **self._data([item.data for item in items]),
        }
        return self._batch(columns, number)

    def _data(self, items: list[bytes]) -> dict[str, pa.Array]:
        if not self._is_text:
            return {"data": pa.array(items, pa.binary())}
        texts = [_as_text(data) for data in items]
        encoded = [
            base64.b64encode(data).decode("ascii") if text is None else None
            for data, text in zip(items, texts, strict=True)
        ]
        return {"data": pa.array(texts, pa.string()), "base64": pa.array(encoded, pa.string())}

    def left(self) -> Iterator[pa.RecordBatch]:
        """Yield the held items as a batch, if there are any."""
        if self._items:
            yield self.take()

    def problems(self) -> Iterator[pa.RecordBatch]:
        """Yield a batch of the recorded problems, if there are any."""
        if self._problems:
            rows = [{"place": self._unit.number, **remark._asdict()} for remark in self._problems]
            kind = self._schema.field(PROBLEM.name).type
            yield self._batch({PROBLEM.name: pa.array(rows, kind)}, len(rows))

    def _batch(self, columns: dict[str, Any], number: int) -> pa.RecordBatch:
        arrays = [columns.get(field.name, pa.nulls(number, field.type)) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def with_problem(*, is_text: bool) -> StructType:
    """Return the columns of the rows from `export_rows`."""
    return StructType([*(TEXT_ITEMS if is_text else ITEMS), PROBLEM])


def _as_text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
