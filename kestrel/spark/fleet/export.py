"""Export of the items of many folders, one task for each queue, to Parquet or JSON lines."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.spark.columns import EXPORT_PROBLEM, EXPORT_TOTALS, EXPORTED_ITEMS, EXPORTED_TEXTS, batches_of
from kestrel.spark.fleet.units import Unit, folders_of, found_readers, map_units, reader_units
from kestrel.spark.options import SourceFailed
from kestrel.tools.files.folder import Folder, Found
from kestrel.tools.files.journal_contents import JournalContents
from kestrel.tools.files.scroll_contents import ScrollContents
from kestrel.tools.files.snapshot_files import JournalSnapshot, damage_sentence
from kestrel.tools.formatting import align_table, show_path, show_text, spell_queue
from kestrel.tools.progress import no_progress
from kestrel.tools.qpack import OutcomeRemark
from kestrel.tools.tool_runner import ToolFailed, explain_os_error

_REPORTS: Final = (EXPORT_PROBLEM.name, EXPORT_TOTALS.name)
"""Columns of the rows that are not items."""

MOST_ROWS: Final = 4096
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of items at which a batch is full; its last item may exceed this."""


class ItemSelection(Enum):
    """The choice of the items of a queue."""

    QUEUED = "queued"
    """Items that a server would have after a restart, in order."""
    ADDED = "added"
    """All items that were ever added and are still in the files."""


_ReadItem: TypeAlias = tuple[bytes, int | None, int, int]
"""Data, add time in ms or None, expiry in ms or 0, and errors of an item as read from its files."""


def export_rows(
    unit: Unit, folder: Folder, which: ItemSelection, now_ms: int, *, is_text: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a unit's items, then of the problems of its files, then its totals. `folder` is its folder.

    The columns are `EXPORTED_TEXTS` with `is_text`, else `EXPORTED_ITEMS`, and `EXPORT_PROBLEM` and `EXPORT_TOTALS`.
    """
    schema = to_arrow_schema(_with_reports(is_text=is_text), timezone="UTC")
    return batches_of(_rows(unit, folder, which, now_ms, is_text=is_text), schema, MOST_ROWS, MOST_BYTES)


def _rows(unit: Unit, folder: Folder, which: ItemSelection, now_ms: int, *, is_text: bool) -> Iterator[tuple[Any, ...]]:
    shown = show_path(unit.folder)
    problems: list[OutcomeRemark] = []
    total_queues = total_items = total_bytes = 0
    try:
        for found in _founds(unit, folder):
            total_queues += 1
            items = _items_in(folder, found, which, now_ms, problems)
            for position, (queue, (data, add_ms, expiry_ms, errors)) in enumerate(items):
                place = unit.server, shown, queue, position
                yield *place, add_ms, expiry_ms or None, errors, *(_as_text(data) if is_text else (data,)), None, None
                total_items += 1
                total_bytes += len(data)
    except (OSError, ToolFailed) as error:
        problems.append(OutcomeRemark(f"{shown}: {_reason(error)}"))
    nothing = [None] * len(EXPORTED_TEXTS if is_text else EXPORTED_ITEMS)
    for remark in problems:
        yield *nothing, {"place": unit.number, **remark._asdict()}, None
    yield *nothing, None, ServerTotals(unit.server, total_queues, total_items, total_bytes)._asdict()


def _founds(unit: Unit, folder: Folder) -> Iterable[Found]:
    """Return the journal or scroll of the unit; for a whole folder its queues, those of scrolls separately."""
    if unit.found is not None:
        return [unit.found]
    return () if unit.is_rest else found_readers(folder, unit.names)


def _items_in(
    folder: Folder, found: Found, which: ItemSelection, now_ms: int, problems: list[OutcomeRemark]
) -> Iterator[tuple[str | None, _ReadItem]]:
    """Yield the items of a queue with its name, and append the problems of its files."""
    shown = show_path(folder.path)
    try:
        with folder.open(found) as opened:
            contents: JournalContents | ScrollContents
            if isinstance(opened, JournalSnapshot):
                name: bytes | None = opened.queue
                contents = JournalContents(opened, now_ms, no_progress)
                items = _of_journal(contents, which)
            else:
                name = opened.chosen[0].name
                contents = ScrollContents(opened, now_ms, no_progress)
                items = _of_scroll(contents, which)
            queue = None if name is None else spell_queue(name)
            for item in items:
                yield queue, item
            files = contents.files
    except (OSError, ToolFailed) as error:
        subject = f"{found.shown}: " if isinstance(error, OSError) else ""
        problems.append(OutcomeRemark(f"{shown}: {subject}{_reason(error)}"))
        return
    if name is None:
        sentence = f"{shown}: {found.shown}: the name of one of its queues is unknown"
        problems.append(OutcomeRemark(sentence, is_complaint=False))
    for read in files:
        if read.end.problem is not None:
            problems.append(OutcomeRemark(f"{shown}: {damage_sentence(read)}", read.is_damaged))


def _of_journal(contents: JournalContents, which: ItemSelection) -> Iterator[_ReadItem]:
    if which is ItemSelection.QUEUED:
        contents.replay()
        for item in contents.items():
            yield item.data, item.add_ms, item.expiry_ms, item.errors
    else:
        for _, _, record in contents.records(apply_records=False):
            if record.adds_item:
                yield record.data, record.add_ms, record.expiry_ms, 0


def _of_scroll(contents: ScrollContents, which: ItemSelection) -> Iterator[_ReadItem]:
    """Yield the items of one queue. For queued items its reader file has the errors after they were written."""
    is_queued = which is ItemSelection.QUEUED
    counts = contents.queues[0].state.errors if is_queued else {}
    for item in contents.queued() if is_queued else contents.added():
        yield item.data, item.add_ms, item.expiry_ms, counts.get(item.id, max(0, item.errors))


def _reason(error: OSError | ToolFailed) -> str:
    return f"cannot be read: {explain_os_error(error)}" if isinstance(error, OSError) else str(error)


def _with_reports(*, is_text: bool) -> StructType:
    """Return the columns of the rows from `export_rows`."""
    return StructType([*(EXPORTED_TEXTS if is_text else EXPORTED_ITEMS), EXPORT_PROBLEM, EXPORT_TOTALS])


def _as_text(data: bytes) -> tuple[str | None, str | None]:
    """Return the item as text, or else in base64."""
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode("ascii")


class ExportFormat(Enum):
    """The file format of exported items."""

    PARQUET = "parquet"
    JSON_LINES = "jsonl"


class ServerTotals(NamedTuple):
    """The exported queues and items of a server, and the bytes of the items' data."""

    server: str
    queues: int
    items: int
    bytes: int


class Exported(NamedTuple):
    """Totals of an export, and remarks on problems of the source files."""

    servers: list[ServerTotals]
    """Sorted by name."""
    remarks: list[OutcomeRemark]

    @property
    def items(self) -> int:
        """The number of exported items."""
        return sum(totals.items for totals in self.servers)

    def lines(self) -> Iterator[str]:
        """Yield a table with a line for each server."""
        rows = [[show_text(server), *map(str, figures)] for server, *figures in self.servers]
        yield from align_table([list(ServerTotals._fields), *rows])


def items_of(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    which: ItemSelection = ItemSelection.QUEUED,
    server: str | None = None,
    queues: Sequence[bytes] = (),
    now_ms: int | None = None,
) -> DataFrame:
    """Return the items of the folders as a table with the columns `kestrel.spark.columns.EXPORTED_ITEMS`.

    Problems of files are not reported; `export` reports them. `which` selects the queued or all added items.
    `now_ms` is the add time of queued items whose record has none. The other arguments and the errors
    are those of `kestrel.spark.fleet.verify.verify`.
    """
    table = _table(spark, paths, which, server, queues, now_ms, is_text=False)
    return _only_items(table)


def export(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    form: ExportFormat = ExportFormat.PARQUET,
    which: ItemSelection = ItemSelection.QUEUED,
    server: str | None = None,
    queues: Sequence[bytes] = (),
    now_ms: int | None = None,
) -> Exported:
    """Write the items of the folders to the new folder or URI `out`, in any file system that Spark can write to.

    The other arguments and the errors are those of `items_of`. Raises `SourceFailed` if `out` exists.
    """
    table = _table(spark, paths, which, server, queues, now_ms, is_text=form is ExportFormat.JSON_LINES)
    seen = Observation("exported")
    observed = table.observe(seen, *(F.collect_list(name).alias(name) for name in _REPORTS))
    writer = _only_items(observed).write.mode("errorifexists")
    try:
        if form is ExportFormat.PARQUET:
            writer.parquet(whole_path(out))
        else:
            writer.option("ignoreNullFields", "true").json(whole_path(out))
    except AnalysisException as error:
        if error.getCondition() == "PATH_ALREADY_EXISTS":
            raise SourceFailed(f"{out} already exists: name another folder for the items") from None
        raise
    problems = sorted(seen.get[EXPORT_PROBLEM.name], key=lambda each: each["place"])
    remarks = [OutcomeRemark(each["sentence"], each["is_complaint"]) for each in problems]
    return Exported(_sum_by_server(seen.get[EXPORT_TOTALS.name]), remarks)


def _only_items(table: DataFrame) -> DataFrame:
    """Return the rows that are items, without the columns of the others."""
    return table.where(" AND ".join(f"{name} IS NULL" for name in _REPORTS)).drop(*_REPORTS)


def _sum_by_server(totals: Sequence[Any]) -> list[ServerTotals]:
    """Return the sums of the totals of each server's units, sorted by name."""
    sums: dict[str, ServerTotals] = {}
    for server, *figures in totals:
        before = sums.get(server, ServerTotals(server, 0, 0, 0))
        sums[server] = ServerTotals(server, *map(sum, zip(before[1:], figures, strict=True)))
    return sorted(sums.values())


def whole_path(path: str) -> str:
    """Return the absolute path, because Spark may run in another folder; a URI is returned unchanged."""
    return path if "://" in path else os.path.abspath(path)


def _table(
    spark: SparkSession,
    paths: Sequence[str],
    which: ItemSelection,
    server: str | None,
    queues: Sequence[bytes],
    now_ms: int | None,
    *,
    is_text: bool,
) -> DataFrame:
    units = reader_units(Disk(), folders_of(paths, server), queues)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    work = partial(export_rows, which=which, now_ms=now, is_text=is_text)
    return map_units(spark, units, work, _with_reports(is_text=is_text))
