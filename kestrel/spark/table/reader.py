"""The batch reader of journals and scrolls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.spark.columns import DATA, PROBLEMS, RECORDS
from kestrel.spark.failures import SourceFailed
from kestrel.spark.schemas import check_schema, drop_column
from kestrel.spark.table.files import files_of
from kestrel.spark.table.filters import OF_FILES, Condition, split_filters
from kestrel.spark.table.locations import find_locations
from kestrel.spark.table.options import SourceOptions, TableView
from kestrel.spark.table.slice_reader import SliceReader
from kestrel.spark.table.slices import ReadTask, plan_tasks
from kestrel.tools.tool_runner import explain_os_error


def schema_of(options: SourceOptions) -> StructType:
    """Return all columns of the view; without the payload, all except the items."""
    if options.view is TableView.ERRORS:
        return PROBLEMS
    return RECORDS if options.has_payload else drop_column(RECORDS, DATA)


def reader_of(options: SourceOptions, schema: StructType) -> JournalReader:
    """Return a reader of the columns of `schema`, a subset of the view's columns. Raises `SourceFailed`."""
    check_schema(schema, schema_of(options))
    reads_some = options.pushes_filters and options.view is TableView.RECORDS
    return (FilteringReader if reads_some else JournalReader)(options, schema)


class JournalReader(DataSourceReader):
    """A reader that divides the files into tasks, and reads them in the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises `SourceFailed`."""
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
        is_of_records = options.view is TableView.RECORDS  # a problem must have one row, so files are not split
        return plan_tasks(disk, chosen, options.partition_bytes, options.parallelism, splits=is_of_records)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        In FAILFAST mode a problem of a file raises `BadJournal`, except in the errors view.
        """
        slices = partition.slices if isinstance(partition, ReadTask) else ()  # Spark adds one if there is none
        reading = SliceReader(
            to_arrow_schema(self._schema, timezone="UTC"),
            is_failfast=self._options.is_failfast,
            conditions=self._conditions,
        )
        return reading.problems(slices) if self._options.view is TableView.ERRORS else reading.records(slices)


class FilteringReader(JournalReader):
    """A reader that applies the supported filters of a query itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over the supported filters and return the others to Spark."""
        self._conditions, left = split_filters(filters)
        return left
