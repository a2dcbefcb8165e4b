"""Conversion of ordered record rows to history rows, journal by journal and in batches, independent of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import JournalFileRecord
from kestrel.scroll import fileset as scrolls
from kestrel.scroll.name_encoding import OWN_READER
from kestrel.scroll.records import RecordCommand, Targets
from kestrel.spark.columns import DATA, HISTORIES
from kestrel.spark.history.journal import ItemHistory, QueueHistory
from kestrel.spark.history.scroll import ScrollHistory, ScrollItemState
from kestrel.spark.table.planned_file import JOURNAL, FileKind

MOST_ROWS: Final = 1 << 13
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of data at which a batch of histories is complete."""

Limits: TypeAlias = "int | Mapping[str, int] | None"
"""Limit of all queues, or of each queue by name."""

GROUP: Final = ("server", "format", "journal")
"""Columns that identify a journal."""

ORDER: Final = ("file_order", "file", "offset")
"""Columns by which the records of a journal are sorted; a null `file_order` comes first."""

NEEDED: Final = (
    *GROUP,
    *ORDER,
    "folder",
    "queue",
    "kind",
    "bytes",
    "opcode",
    "xid",
    "item_id",
    "add_ms",
    "expiry_ms",
    "data_bytes",
    "errors",
    "restates",
    "ranges",
    "error_counts",
    "targets",
)
"""Columns of records that the replay needs; the column data is optional."""


def replay_histories(
    batches: Iterable[pa.RecordBatch], limits: Limits, schema: pa.Schema, queue: str | None
) -> Iterator[pa.RecordBatch]:
    """Yield the histories of all journals; with `queue`, a pattern, only those of matching queues."""
    told = _replayed(_rows(batches), limits)
    if queue is not None:
        told = (each for each in told if fnmatchcase(each[_QUEUE], queue))
    return _batches(told, schema)


class _RecordRow(NamedTuple):
    """A row of the records table: the columns `NEEDED` and the item."""

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


_History: TypeAlias = tuple[Any, ...]
"""A history row in the order of the columns of `HISTORIES`."""

_QUEUE: Final = HISTORIES.names.index("queue")


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_RecordRow]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in NEEDED]
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
                yield *owner, *_history_row(each)
    for each in history.rest():
        yield *owner, *_history_row(each)


def _record(row: _RecordRow) -> JournalFileRecord:
    expiry_ms = row.expiry_ms or 0
    return JournalFileRecord(Opcode(row.opcode), row.size, row.xid or 0, b"", row.add_ms, expiry_ms, row.restates)


def _history_row(item: ItemHistory) -> _History:
    return (
        item.file,
        item.offset,
        None,
        item.add_ms,
        item.expiry_ms,
        item.data_bytes,
        item.state,
        item.opens,
        item.aborts,
        item.errors,
        item.xid,
        item.position,
        item.taken_after_ms,
        item.taken_before_ms,
        item.removed_after_ms,
        item.removed_before_ms,
        item.expired,
        item.discarded,
        item.data,
    )


# Scrolls with all their queues.


def _of_scroll(rows: Iterator[_RecordRow]) -> Iterator[_History]:
    first = next(rows)
    history = ScrollHistory(first.journal)
    targets: Targets | None = None
    file = first.file
    for row in chain((first,), rows):
        if row.file != file:
            file, targets = row.file, None  # the item after the TARGETS was never written
        if row.file_order is None:
            _apply_reader_record(row, history)
            continue
        if row.opcode == RecordCommand.PUT:
            assert row.item_id is not None
            is_archived = row.kind == FileKind.ARCHIVED.value
            for read in history.item(row.item_id, max(0, row.errors or 0), targets, is_archived=is_archived):
                yield _as_read(row, read)
        targets = None
        if row.targets is not None:
            readers = frozenset(reader.encode() for reader in row.targets["readers"])
            targets = Targets(readers, row.targets["are_left_out"])


def _apply_reader_record(row: _RecordRow, history: ScrollHistory) -> None:
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


def _as_read(row: _RecordRow, read: ScrollItemState) -> _History:
    owner = row.server, row.folder, row.format, row.journal, read.queue, row.file, row.offset
    item = row.item_id, row.add_ms, row.expiry_ms, row.data_bytes
    unknown = None, None, None, None, None, None
    return *owner, *item, read.state, None, None, read.errors, None, read.position, *unknown, row.data


def _batches(rows: Iterator[_History], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    def batch() -> pa.RecordBatch:
        columns = zip(*together, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    together: list[_History] = []
    size = 0
    for row in rows:
        together.append(row)
        if row[-1] is not None:
            size += len(row[-1])
        if len(together) >= MOST_ROWS or size >= MOST_BYTES:
            yield batch()
            together.clear()
            size = 0
    if together:
        yield batch()
