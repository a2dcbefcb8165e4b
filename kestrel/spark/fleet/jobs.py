"""Units of work as a job of Spark: a table of them, of which each task does its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kestrel.disk.files import Disk
from kestrel.server.reactor import raise_file_limit
from kestrel.spark.fleet.units import SCHEMA, Unit, assign_tasks
from kestrel.tools.files.folder import Folder

_TASKS_EACH: Final = 8
"""So many tasks for each that may run at a time: none waits long for the last one."""

_TASKS: Final = 256
"""Where nobody says how many may run at a time."""


def max_tasks(spark: SparkSession) -> int:
    """In how many parts work is done there."""
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
    """What `work` makes of the units, in no order. Nothing is done before somebody wants the rows."""
    shared = assign_tasks(units, max_tasks(spark))
    rows = [unit.row(task) for task, unit in shared]
    table = spark.createDataFrame(rows, SCHEMA)
    if rows:
        tasks = 1 + max(task for task, _ in shared)
        table = table.repartitionById(tasks, "task")

    def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise_file_limit()  # all files of a queue are open at once
        for batch in batches:
            yield from map_units_by_folder([Unit.from_row(row) for row in batch.to_pylist()], work, Disk())

    return table.mapInArrow(each, schema)


def map_units_by_folder(
    units: Iterable[Unit], work: Callable[[Unit, Folder], Iterable[pa.RecordBatch]], disk: Disk
) -> Iterator[pa.RecordBatch]:
    """What `work` makes of each. Those of a folder come together and share it: to list a large one takes long."""
    folder: Folder | None = None
    for unit in sorted(units, key=lambda each: (each.folder, each.number)):
        if folder is None or folder.path != unit.folder:
            folder = Folder(disk, unit.folder)
        yield from work(unit, folder)
