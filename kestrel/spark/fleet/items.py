"""The items of one queue, as kestrel-qdump -Q and -A have them, in bounded batches."""

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
"""In a batch."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of items in a batch, or one item that is larger."""


class ItemSelection(Enum):
    """The choice of items of a queue."""

    QUEUED = "queued"
    """Those that a server would have after a restart, in order."""
    ADDED = "added"
    """All that were ever added and are still in the files."""


class ReadItem(NamedTuple):
    """One item, as its files say."""

    data: bytes
    add_ms: int | None
    expiry_ms: int
    errors: int


def export_rows(
    unit: Unit, folder: Folder, which: ItemSelection, now_ms: int, *, is_text: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a unit's items, and behind them of what is wrong with its files. `folder` is the one that it is in.

    With `is_text` they are `TEXT_ITEMS`, else `ITEMS`; `problem` comes with both.
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
    """What the unit is; of a folder each queue, those of scrolls apart."""
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
    """Its items; the last ones are left to wait."""
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
        sentence = f"{show_path(folder.path)}: {found.shown}: the name of one of its queues is not known"
        batches.problem(OutcomeRemark(sentence, is_complaint=False))
    for read in files:
        if read.end.problem is not None:
            batches.problem(OutcomeRemark(f"{show_path(folder.path)}: {damage_sentence(read)}", read.is_damaged))


def _open(folder: Folder, found: Found) -> JournalSnapshot | ScrollSnapshot:
    if isinstance(found, FoundJournal):
        return folder.open_journal(found.queue)
    return folder.open_scroll(found) if isinstance(found, FoundScroll) else folder.open_file(found.file_name)


class _JournalItems:
    """Those of a queue that has a journal of its own."""

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
    """Those of one queue of a scroll."""

    def __init__(self, scroll: ScrollSnapshot, now_ms: int) -> None:
        name = scroll.chosen[0].name
        self.name = None if name is None else spell_queue(name)
        self._contents = ScrollContents(scroll, now_ms, may_show_progress=False)

    @property
    def files(self) -> Sequence[FileReadResult]:
        return self._contents.files

    def queued(self) -> Iterator[ReadItem]:
        """Its reader file counts errors, of items that came back after they were written."""
        counts = self._contents.queues[0].state.errors
        for item in self._contents.queued():
            errors = counts.get(item.id, max(0, item.errors))
            yield ReadItem(item.data, item.add_ms, item.expiry_ms, errors)

    def added(self) -> Iterator[ReadItem]:
        for item in self._contents.added():
            yield ReadItem(item.data, item.add_ms, item.expiry_ms, max(0, item.errors))


class Batches:
    """Items as rows, of which no more wait than make a batch."""

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
        """Items of that queue come now, and none waits."""
        self._queue = queue
        self._position = 0

    def add(self, item: ReadItem) -> None:
        """The next one of the queue."""
        self._items.append(item)
        self._bytes += len(item.data)

    def problem(self, remark: OutcomeRemark) -> None:
        """Something is wrong with files."""
        self._problems.append(remark)

    @property
    def is_full(self) -> bool:
        """Whether it is time to `take`."""
        return len(self._items) >= MOST_ROWS or self._bytes >= MOST_BYTES

    def take(self) -> pa.RecordBatch:
        """Those that wait, which are of one queue."""
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
        """Those that still wait, if there are any."""
        if self._items:
            yield self.take()

    def problems(self) -> Iterator[pa.RecordBatch]:
        """What is wrong with files, if anything is."""
        if self._problems:
            rows = [{"place": self._unit.number, **remark._asdict()} for remark in self._problems]
            kind = self._schema.field(PROBLEM.name).type
            yield self._batch({PROBLEM.name: pa.array(rows, kind)}, len(rows))

    def _batch(self, columns: dict[str, Any], number: int) -> pa.RecordBatch:
        arrays = [columns.get(field.name, pa.nulls(number, field.type)) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def with_problem(*, is_text: bool) -> StructType:
    """The columns that `export_rows` gives."""
    return StructType([*(TEXT_ITEMS if is_text else ITEMS), PROBLEM])


def _as_text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
