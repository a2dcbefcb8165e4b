"""The batch reader of journals and scrolls: it divides files into tasks, and yields Arrow batches in the tasks.

With the option ``filterPushdown`` it applies filters of a query: it skips files, and drops records before Spark gets
them. Spark then requires ``spark.sql.python.filterPushdown.enabled``. Without it Spark refuses a source that takes
filters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.spark.columns import DATA, PROBLEMS, RECORDS, check_schema, drop_column
from kestrel.spark.options import BadJournal, SourceFailed
from kestrel.spark.table.files import files_of
from kestrel.spark.table.options import SourceOptions, find_locations
from kestrel.spark.table.planned_file import PlannedFile, PlannedReader
from kestrel.spark.table.record_columns import journal_rows, scroll_rows
from kestrel.spark.table.record_runs import MOST_ROWS, Columns, RecordRows, constant_of
from kestrel.spark.table.slices import FileSlice, ReadTask, plan_tasks
from kestrel.tools.tool_runner import explain_os_error

logger = logging.getLogger("kestrel.spark")

VANISHED: Final = "the file is gone: it was packed or erased, or its queue was deleted"


OF_FILES: Final = ("server", "folder", "format", "journal", "queue", "file", "kind")
"""Columns with one value for all records of a file."""

OF_RECORDS: Final = ("op", "opcode", "xid", "item_id", "add_time", "expiry_time", "data_bytes", "offset", "bytes")
"""Columns with a value for each record."""

_ARROW_RECORDS: Final = to_arrow_schema(RECORDS, timezone="UTC")

_COMPARISONS: Final[dict[type[datasource.Filter], str]] = {
    datasource.EqualTo: "equal",
    datasource.GreaterThan: "greater",
    datasource.GreaterThanOrEqual: "greater_equal",
    datasource.LessThan: "less",
    datasource.LessThanOrEqual: "less_equal",
}
_OTHERS: Final = (datasource.In, datasource.IsNotNull, datasource.StringStartsWith)


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter of one column. A null value never meets it."""

    column: str
    filter: datasource.Filter

    def is_met_by(self, file: PlannedFile) -> bool:
        """Return True if the file's records meet the condition. The column must be one of `OF_FILES`."""
        value = file.kind.value if self.column == "kind" else getattr(file.owner, self.column)
        return bool(self.met(pa.array([value], pa.string()))[0].as_py())

    def met(self, values: pa.Array) -> pa.Array:
        """Return a boolean for each value, true if it meets the condition."""
        asked = self.filter
        if isinstance(asked, datasource.IsNotNull):
            return pc.is_valid(values)
        if isinstance(asked, datasource.In):
            return pc.is_in(values, pa.array([each for each in asked.value if each is not None], values.type))
        if isinstance(asked, datasource.StringStartsWith):
            return pc.fill_null(pc.starts_with(values, asked.value), False)
        value = getattr(asked, "value")  # noqa: B009 - all comparisons have it, but their base class does not
        return pc.fill_null(getattr(pc, _COMPARISONS[type(asked)])(values, value), False)


def split_filters(filters: Iterable[datasource.Filter]) -> tuple[list[Condition], list[datasource.Filter]]:
    """Return the conditions for the reader, and the filters left to Spark."""
    conditions, left = [], []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        is_known = isinstance(each, (*_COMPARISONS, *_OTHERS))
        if is_known and len(path) == 1 and path[0] in (*OF_FILES, *OF_RECORDS):
            conditions.append(Condition(path[0], each))
        else:
            left.append(each)
    return conditions, left


class FileProblem(NamedTuple):
    """A problem of a file: the columns of `PROBLEMS` that do not name the file."""

    kind: str
    offset: int | None
    problem: str
    bytes_behind: int | None = None

    @classmethod
    def of(cls, end: ReadEnd, size: int) -> FileProblem | None:
        """Return the problem of a file of `size` bytes, or None if it ended well."""
        if end.problem is None:
            return None
        return cls("unfinished" if end.is_unfinished else "damaged", end.offset, end.problem, size - end.offset)


def problem_row(file: PlannedFile, problem: FileProblem) -> dict[str, Any]:
    """Return the row of a problem in the table of problems."""
    return {**asdict(file.owner), **problem._asdict()}


class SliceReader:
    """A reader of slices as batches of `schema`, with the records that meet all conditions.

    A problem of a kind in `ways_out` is raised in every mode, with that text as its remedy.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        is_failfast: bool = False,
        ways_out: Mapping[str, str] | None = None,
        conditions: Sequence[Condition] = (),
        disk: Disk | None = None,
    ) -> None:
        self._schema = schema
        self._is_failfast = is_failfast
        self._ways_out = ways_out or {}
        self._conditions = conditions
        self._disk = disk or Disk()
        self._file: PlannedFile | None = None
        self._constants: Mapping[str, pa.Array] = {}
        self._constant_rows = 0
        self._has_data = DATA in schema.names

    def records(
        self, slices: Sequence[FileSlice], handle: Callable[[PlannedFile, FileProblem], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of records. A problem is given to `handle`, or else logged, or raised as `BadJournal`."""
        handle = handle or self._log
        for each in slices:
            for item in self._read(each):
                if isinstance(item, FileProblem):
                    handle(each.file, item)
                else:
                    yield self._batch(each.file, *item)

    def _log(self, file: PlannedFile, problem: FileProblem) -> None:
        path = f"{file.owner.folder}/{file.owner.file}"
        place = "" if problem.offset is None else f", offset {problem.offset}"
        sentence = f"{path}{place}: {problem.kind}: {problem.problem}"
        if problem.kind in self._ways_out:
            raise BadJournal(f"{sentence}; {self._ways_out[problem.kind]}")
        if self._is_failfast:
            raise BadJournal(f'{sentence}; option("view", "errors") lists all problems')
        logger.warning("%s", sentence)

    def problems(self, slices: Sequence[FileSlice]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each problem of a file."""
        for each in slices:
            for item in self._read(each):
                if isinstance(item, FileProblem):
                    yield pa.RecordBatch.from_pylist([problem_row(each.file, item)], self._schema)

    def _read(self, each: FileSlice) -> Iterator[tuple[int, Columns] | FileProblem]:
        """Yield batches of records, then the problem of the file if there is one."""
        try:
            with PlannedReader(self._disk, each.file) as reader:
                rows = self._rows(reader, each)
                yield from rows
                problem = FileProblem.of(rows.end, reader.size)
        except FileNotFoundError:
            problem = FileProblem("vanished", None, VANISHED)
        except OSError as error:
            problem = FileProblem("unreadable", None, explain_os_error(error))
        if problem is not None:
            yield problem

    def _rows(self, reader: FileReader, each: FileSlice) -> RecordRows:
        if each.file.is_scroll:
            is_reader = each.file.is_reader
            return scroll_rows(reader, each.start, each.stop, is_reader=is_reader, has_data=self._has_data)
        return journal_rows(reader, each.start, each.stop, has_data=self._has_data)

    def _batch(self, file: PlannedFile, rows: int, columns: Columns) -> pa.RecordBatch:
        keep = None
        for condition in self._conditions:
            if condition.column in OF_RECORDS:  # planning has applied the others
                column = columns.get(condition.column)
                values = pa.nulls(rows, _ARROW_RECORDS.field(condition.column).type) if column is None else column()
                met = condition.met(values)
                keep = met if keep is None else pc.and_(keep, met)
        constants = self._constants_of(file, rows)
        arrays = []
        for field in self._schema:
            if field.name in constants:
                array = constants[field.name].slice(0, rows)
            elif field.name in columns:
                array = columns[field.name]().cast(field.type)
            else:
                array = pa.nulls(rows, field.type)
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return batch if keep is None else batch.filter(keep)

    def _constants_of(self, file: PlannedFile, rows: int) -> Mapping[str, pa.Array]:
        """Return the columns that are constant for a file, with at least `rows` rows."""
        if self._file is not file or rows > self._constant_rows:
            # A small file has one batch. The batches of a large file share these columns.
            self._constant_rows = rows if self._file is not file else MOST_ROWS
            values = {**asdict(file.owner), "kind": file.kind.value, "file_order": file.order}
            self._constants = {
                field.name: constant_of(values[field.name], self._constant_rows).cast(field.type)
                for field in self._schema
                if field.name in values
            }
            self._file = file
        return self._constants


def schema_of(options: SourceOptions) -> StructType:
    """Return all columns of the view; without the payload, all except the items."""
    if options.lists_errors:
        return PROBLEMS
    return RECORDS if options.has_payload else drop_column(RECORDS, DATA)


def reader_of(options: SourceOptions, schema: StructType) -> JournalReader:
    """Return a reader of the columns of `schema`, a subset of the view's columns. Raises `SourceFailed`."""
    check_schema(schema, schema_of(options))
    reads_some = options.pushes_filters and not options.lists_errors
    return (FilteringReader if reads_some else JournalReader)(options, schema)


class JournalReader(datasource.DataSourceReader):
    """A reader that divides the files into tasks, and reads them in the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[datasource.InputPartition]:
        try:
            return self._tasks(Disk())
        except OSError as error:
            raise SourceFailed(explain_os_error(error)) from None

    def _tasks(self, disk: Disk) -> list[ReadTask]:
        options = self._options
        files = files_of(disk, find_locations(options.paths, options.server), options.queue)
        after_s, before_s = options.modified_after_s, options.modified_before_s
        chosen = [
            file
            for file in files
            if (after_s is None or file.modified_s > after_s)
            and (before_s is None or file.modified_s < before_s)
            and all(each.is_met_by(file) for each in self._conditions if each.column in OF_FILES)
        ]
        splits = not options.lists_errors  # a problem must have one row
        return plan_tasks(disk, chosen, options.partition_bytes, options.parallelism, splits=splits)

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        In FAILFAST mode a problem of a file raises `BadJournal`, except in the errors view.
        """
        slices = partition.slices if isinstance(partition, ReadTask) else ()  # Spark adds one if there is none
        reading = SliceReader(
            to_arrow_schema(self._schema, timezone="UTC"),
            is_failfast=self._options.is_failfast,
            conditions=self._conditions,
        )
        return reading.problems(slices) if self._options.lists_errors else reading.records(slices)


class FilteringReader(JournalReader):
    """A reader that applies the supported filters of a query itself."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Take over the supported filters and return the others to Spark."""
        self._conditions, left = split_filters(filters)
        return left
