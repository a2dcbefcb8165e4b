"""Work on many pieces of known cost in the tasks of one Spark job."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heapreplace
from typing import Final, Protocol, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kestrel.server.process import raise_file_limit


class Piece(Protocol):
    """A piece of work that can be pickled."""

    @property
    def cost(self) -> int:
        """Estimated bytes to read."""


_Piece = TypeVar("_Piece", bound=Piece)

_TASKS_EACH: Final = 8
"""Tasks per parallel task, so that the last task does not delay the job for long."""

_TASKS: Final = 256
"""Number of tasks if the parallelism is unknown."""


def assign_tasks(pieces: Sequence[_Piece], most: int) -> list[tuple[int, _Piece]]:
    """Assign pieces to at most `most` tasks: the largest pieces first, each to the task with the least work."""
    loads = [(0, task) for task in range(min(len(pieces), most))]
    heapify(loads)
    shared = []
    for piece in sorted(pieces, key=lambda each: -each.cost):
        load, task = loads[0]
        heapreplace(loads, (load + piece.cost, task))
        shared.append((task, piece))
    return shared


def max_tasks(spark: SparkSession) -> int:
    """Return the maximum number of tasks for a job of this session."""
    try:
        return _TASKS_EACH * spark.sparkContext.defaultParallelism
    except PySparkException:  # Spark Connect
        return _TASKS


def map_in_tasks(
    spark: SparkSession,
    pieces: Sequence[_Piece],
    work: Callable[[Iterable[_Piece]], Iterator[pa.RecordBatch]],
    schema: StructType,
) -> DataFrame:
    """Return a table of the rows that `work` makes of the pieces of each task, in no order. Spark runs it lazily."""
    shared = assign_tasks(pieces, max_tasks(spark))
    table = spark.createDataFrame([(task, pickle.dumps(piece)) for task, piece in shared], "task INT, piece BINARY")
    if shared:
        table = table.repartitionById(1 + max(task for task, _ in shared), "task")

    def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise_file_limit()  # a task may open all files of a queue at once
        for batch in batches:
            yield from work(map(pickle.loads, batch.column("piece").to_pylist()))

    return table.mapInArrow(each, schema)
