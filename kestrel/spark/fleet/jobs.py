"""Spark jobs over units of work: a table of units, repartitioned so that each task gets its own units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.server.process import raise_file_limit
from kestrel.spark.fleet.units import SCHEMA, Unit, assign_tasks
from kestrel.tools.files.folder import Folder

_TASKS_EACH: Final = 8
"""Tasks per parallel task, so that the last task does not delay the job for long."""

_TASKS: Final = 256
"""Number of tasks if the parallelism is unknown."""


def max_tasks(spark: SparkSession) -> int:
    """Return the maximum number of tasks for a job of this session."""
    try:
        return _TASKS_EACH * spark.sparkContext.defaultParallelism
    except PySparkException:  # Spark Connect
        return _TASKS


def map_units(
    spark: SparkSession,
    units: Sequence[Unit],
    work: Callable[[Unit, Folder], Iterable[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """Return a table of the rows that `work` makes of the units, in no order. Spark runs the work lazily."""
    shared = assign_tasks(units, max_tasks(spark))
    rows = [unit.row(task) for task, unit in shared]
    table = spark.createDataFrame(rows, SCHEMA)
    if rows:
        tasks = 1 + max(task for task, _ in shared)
        table = table.repartitionById(tasks, "task")

    def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise_file_limit()  # a task opens all files of a queue at once
        for batch in batches:
            yield from map_units_by_folder([Unit.from_row(row) for row in batch.to_pylist()], work, Disk())

    return table.mapInArrow(each, schema)


def map_units_by_folder(
    units: Iterable[Unit], work: Callable[[Unit, Folder], Iterable[pa.RecordBatch]], disk: Disk
) -> Iterator[pa.RecordBatch]:
    """Yield the batches that `work` makes of the units. Units of a folder share its listing, which may be slow."""
    folder: Folder | None = None
    for unit in sorted(units, key=lambda each: (each.folder, each.number)):
        if folder is None or folder.path != unit.folder:
            folder = Folder(disk, unit.folder)
        yield from work(unit, folder)
