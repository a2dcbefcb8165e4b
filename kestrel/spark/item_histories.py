"""Conversion of records to item histories: ``histories(spark.read.format("kestrel").load(...))``.

Spark groups and sorts the records of each journal. Then each journal is replayed record by record, as at a start of the
server. Memory holds the items of one queue (`kestrel.spark.queue_history`), some 500 bytes each, plus their data if
there is a column ``data``. For a scroll it holds only the ids that readers are done with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, TimestampType

from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import JournalFileRecord
from kestrel.scroll import fileset as scrolls
from kestrel.scroll.name_encoding import OWN_READER
from kestrel.scroll.reader_file import ReaderState, ReaderStateBuilder
from kestrel.scroll.records import RecordCommand, Targets
from kestrel.spark.columns import DATA, HISTORIES, batches_of, ms_of
from kestrel.spark.queue_history import QUEUED, ItemHistory, QueueHistory
from kestrel.spark.table.planned_file import JOURNAL, FileKind

DONE: Final = "done"


MOST_ROWS: Final = 1 << 13
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of data at which a batch of histories is complete."""

Limits: TypeAlias = "int | Mapping[str, int] | None"

GROUP: Final = ("server", "format", "journal")
"""Columns that identify a journal."""

ORDER: Final = ("file_order", "file", "offset")
"""Columns by which the records of a journal are sorted; a null `file_order` comes first."""


def replay_histories(
    batches: Iterable[pa.RecordBatch], limits: Limits, schema: pa.Schema, queue: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield the histories of all journals; with `queue`, a pattern, only those of matching queues."""
    told = _replayed(_rows(batches), limits)
    if queue is not None:
        told = (each for each in told if fnmatchcase(each[_QUEUE], queue))
    return batches_of(told, schema, MOST_ROWS, MOST_BYTES)


class _RecordRow(NamedTuple):
    """A row of the records table."""

    server: str
    format: str
    journal: str
    file_order: int | None
    file: str
    offset: int
    folder: str
    queue: str
    kind: str
    size: int
    opcode: int
    xid: int | None
    item_id: int | None
    add_ms: int | None
    expiry_ms: int | None
    data_bytes: int | None
    errors: int | None
    restates: int | None
    ranges: Sequence[Mapping[str, int]] | None
    error_counts: Sequence[Mapping[str, int]] | None
    targets: Mapping[str, Any] | None
    data: bytes | None


_RENAMED: Final = {"size": "bytes", "add_ms": "add_time", "expiry_ms": "expiry_time"}

NEEDED: Final = tuple(_RENAMED.get(name, name) for name in _RecordRow._fields if name != DATA)
"""Columns of records that the replay needs; the column data is optional."""

_History: TypeAlias = tuple[Any, ...]
"""A history row in the order of the columns of `HISTORIES`."""

_QUEUE: Final = HISTORIES.names.index("queue")


def _attribute(column: StructField) -> str:
    """Return the attribute of `ItemHistory` for a column. Times are columns of timestamps, and attributes in ms."""
    return f"{column.name.removesuffix('_time')}_ms" if isinstance(column.dataType, TimestampType) else column.name


_ITEM_COLUMNS: Final = attrgetter(*map(_attribute, HISTORIES.fields[_QUEUE + 1 :]))


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_RecordRow]:
    for batch in batches:
        arrays = (batch.column(name) for name in NEEDED)
        columns = [(ms_of(array) if pa.types.is_timestamp(array.type) else array).to_pylist() for array in arrays]
        columns.append(batch.column(DATA).to_pylist() if DATA in batch.schema.names else [None] * batch.num_rows)
        yield from map(_RecordRow._make, zip(*columns, strict=True))


def _replayed(rows: Iterable[_RecordRow], limits: Limits) -> Iterator[_History]:
    for (_, form, _), of_one in groupby(rows, key=itemgetter(*range(len(GROUP)))):
        if form == JOURNAL:
            yield from _of_journal(of_one, limits)
        else:
            yield from _of_scroll(of_one)


# Queues in Kestrel's format.


def _of_journal(rows: Iterator[_RecordRow], limits: Limits) -> Iterator[_History]:
    first = next(rows)
    owner = first.server, first.folder, first.format, first.journal, first.queue
    history = QueueHistory(limits if isinstance(limits, int | None) else limits.get(first.queue))
    for row in chain((first,), rows):
        opcode = row.opcode
        if opcode == Opcode.REMOVE:
            history.drop_head()
            continue
        item = ItemHistory(row.file, row.offset, row.add_ms, row.expiry_ms, row.data_bytes or 0, row.data)
        if opcode == Opcode.ADDX:
            history.put(item)
        else:
            history.do(_record(row), row.offset, item)
        if len(history.gone) >= MOST_ROWS:
            gone, history.gone = history.gone, []
            for each in gone:
                yield *owner, *_ITEM_COLUMNS(each)
    for each in history.rest():
        yield *owner, *_ITEM_COLUMNS(each)


def _record(row: _RecordRow) -> JournalFileRecord:
    expiry_ms = row.expiry_ms or 0
    return JournalFileRecord(Opcode(row.opcode), row.size, row.xid or 0, b"", row.add_ms, expiry_ms, row.restates)


# Scrolls with all their queues.


class _ScrollQueue:
    """A queue of a scroll."""

    def __init__(self, name: str, state: ReaderState) -> None:
        self.name = name
        self.state = state
        self.left = 0


class _ScrollHistory:
    """The replay of one scroll for each of its queues.

    Pass the reader files to `said_by` first, then each item in order to `item`. So memory holds only the ids that
    readers are done with. Reader files record neither times nor open reads.
    """

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._said: dict[bytes, tuple[str, ReaderStateBuilder]] = {}
        self._queues: Mapping[bytes, _ScrollQueue] | None = None
        self._last_id = 0

    def said_by(self, reader: bytes, queue: str) -> ReaderStateBuilder:
        """Return the state of a reader file of that queue, for adding its records."""
        return self._said.setdefault(reader, (queue, ReaderStateBuilder()))[1]

    def item(self, row: _RecordRow, targets: Targets | None) -> Iterator[_History]:
        """Yield the item's history in each queue that it was put to; nothing unless its id is higher than all before.

        Without a reader file, the only queue is done with archived items, which no reader needs, but not with others.
        """
        item_id = row.item_id
        if item_id is None or item_id <= self._last_id:
            return
        self._last_id = item_id
        if self._queues is None:
            self._queues = self._all_queues()
        is_unread = row.kind == FileKind.ARCHIVED.value and not self._said
        for reader, queue in self._queues.items():
            if targets is not None and not targets.has(reader):
                continue
            is_done = is_unread or item_id in queue.state.done
            state, position = (DONE, None) if is_done else (QUEUED, queue.left)
            errors = queue.state.errors.get(item_id, max(0, row.errors or 0))
            owner = row.server, row.folder, row.format, row.journal, queue.name, row.file, row.offset
            item = item_id, row.add_ms, row.expiry_ms, row.data_bytes
            unknown = None, None, None, None, None, None
            yield *owner, *item, state, None, None, errors, None, position, *unknown, row.data
            queue.left += not is_done

    def _all_queues(self) -> Mapping[bytes, _ScrollQueue]:
        if not self._said:
            return {OWN_READER: _ScrollQueue(self._journal, ReaderState())}
        states = {reader: (queue, said.state()) for reader, (queue, said) in self._said.items()}
        return {reader: _ScrollQueue(queue, state) for reader, (queue, state) in states.items() if not state.is_deleted}


def _of_scroll(rows: Iterator[_RecordRow]) -> Iterator[_History]:
    first = next(rows)
    history = _ScrollHistory(first.journal)
    targets: Targets | None = None
    file = first.file
    for row in chain((first,), rows):
        if row.file != file:
            file, targets = row.file, None  # the item after the TARGETS was never written
        if row.file_order is None:
            _apply_reader_record(row, history)
            continue
        if row.opcode == RecordCommand.PUT:
            yield from history.item(row, targets)
        targets = None
        if row.targets is not None:
            readers = frozenset(reader.encode() for reader in row.targets["readers"])
            targets = Targets(readers, row.targets["are_left_out"])


def _apply_reader_record(row: _RecordRow, history: _ScrollHistory) -> None:
    """Apply a record of a reader file."""
    said = history.said_by(_reader_of(row.file), row.queue)
    if row.opcode == RecordCommand.READ_HEAD:
        said.head = row.item_id or 0
    elif row.ranges is not None:
        for each in row.ranges:
            said.done.add(each["first"], each["last"])
    elif row.error_counts is not None:
        said.errors.update((each["item_id"], each["errors"]) for each in row.error_counts)
    elif row.opcode == RecordCommand.DELETED:
        said.is_deleted = True


def _reader_of(file_name: str) -> bytes:
    """Return the reader's name as in a TARGETS record."""
    file = scrolls.parse_file_name(file_name.encode())
    return (file.part if file is not None else b"") or OWN_READER


def histories(
    records: DataFrame, max_items: int | Mapping[str, int] | None = None, queue: str | None = None
) -> DataFrame:
    """Return a row for each item of each queue (`kestrel.spark.columns.HISTORIES`), from all records of their journals.

    The records must be those of whole journals; a record that was filtered out is not replayed. Leave out the column
    ``data``, or read with ``option("payload", "false")``, unless the histories need it. `max_items` is the limit of all
    queues, or of each queue by name; it is needed to find possible discards. `queue` is a pattern of names that limits
    the result to matching queues.
    """
    limits = max_items if isinstance(max_items, int | None) else dict(max_items)
    wanted = [*NEEDED, DATA] if DATA in records.columns else list(NEEDED)
    schema = to_arrow_schema(HISTORIES, timezone="UTC")

    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return replay_histories(batches, limits, schema, queue)

    in_order = records.select(*wanted).repartition(*GROUP)
    in_order = in_order.sortWithinPartitions(*GROUP, F.asc_nulls_first("file_order"), "file", "offset")
    return in_order.mapInArrow(replay, HISTORIES)
