"""Item histories directly from files: each task reads whole journals in order and replays them.

Unlike `kestrel.spark.item_histories.histories`, which takes any table of records, this needs no shuffle and no sort,
and also returns the problems of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from kestrel.spark.columns import HISTORIES, PROBLEMS, RECORDS
from kestrel.spark.item_histories import NEEDED, Limits, replay_histories
from kestrel.spark.table.planned_file import PlannedFile
from kestrel.spark.table.reader import FileProblem, SliceReader, problem_row
from kestrel.spark.table.slices import FileSlice
from kestrel.spark.task_map import map_in_tasks

PROBLEM: Final = "problem"
"""Column that is null for a history. In the other rows it is the only column, with those of `PROBLEMS`."""

_ROWS: Final = StructType(
    [*(StructField(field.name, field.dataType) for field in HISTORIES), StructField(PROBLEM, PROBLEMS)]
)


@dataclass(frozen=True, slots=True)
class JournalFiles:
    """All files of a journal or scroll, in the order in which a server reads them."""

    slices: Sequence[FileSlice]

    @property
    def cost(self) -> int:
        """Estimated bytes to read."""
        return sum(each.cost for each in self.slices)


def read_histories(
    spark: SparkSession,
    files: Sequence[PlannedFile],
    max_items: int | Mapping[str, int] | None = None,
    queue: str | None = None,
) -> DataFrame:
    """Return a row for each item of each queue, without its data, and for each problem of a file.

    `files` are those of whole journals, as `kestrel.spark.table.files.files_of` returns them. `max_items` and `queue`
    are those of `kestrel.spark.item_histories.histories`.
    """
    limits = max_items if isinstance(max_items, int | None) else dict(max_items)
    journals = [
        JournalFiles([FileSlice(file, 0, file.size) for file in of_one])
        for _, of_one in groupby(files, lambda file: (file.owner.server, file.owner.format, file.owner.journal))
    ]
    return map_in_tasks(spark, journals, partial(_rows_of, limits=limits, queue=queue), _ROWS)


def _rows_of(journals: Iterable[JournalFiles], limits: Limits, queue: str | None) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(_ROWS, timezone="UTC")
    histories = to_arrow_schema(HISTORIES, timezone="UTC")
    reader = SliceReader(to_arrow_schema(StructType([RECORDS[name] for name in NEEDED]), timezone="UTC"))
    for journal in journals:
        problems: list[dict[str, Any]] = []

        def add(file: PlannedFile, problem: FileProblem, problems: list[dict[str, Any]] = problems) -> None:
            problems.append({PROBLEM: problem_row(file, problem)})

        for batch in replay_histories(reader.records(journal.slices, add), limits, histories, queue):
            arrays = [*batch.columns, pa.nulls(batch.num_rows, schema.field(PROBLEM).type)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        if problems:
            yield pa.RecordBatch.from_pylist(problems, schema)
