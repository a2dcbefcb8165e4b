"""Export of the items of many folders, one task for each queue, to Parquet or JSON lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from kestrel.disk.files import Disk
from kestrel.spark.failures import SourceFailed
from kestrel.spark.fleet.columns import PROBLEM
from kestrel.spark.fleet.items import ItemSelection, export_rows, with_problem
from kestrel.spark.fleet.jobs import map_units
from kestrel.spark.fleet.units import Unit, folders_of, reader_units
from kestrel.tools.files.folder import Folder
from kestrel.tools.qpack.outcomes import OutcomeRemark


class ExportFormat(Enum):
    """The file format of exported items."""

    PARQUET = "parquet"
    JSON_LINES = "jsonl"


class Exported(NamedTuple):
    """The number of exported items, and remarks on problems of the source files."""

    items: int
    remarks: list[OutcomeRemark]


def items_of(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    which: ItemSelection = ItemSelection.QUEUED,
    server: str | None = None,
    queues: Sequence[bytes] = (),
    now_ms: int | None = None,
) -> DataFrame:
    """Return the items of the folders as a table with the columns `kestrel.spark.fleet.columns.ITEMS`.

    Problems of files are not reported; `export` reports them. `which` selects the queued or all added items.
    `now_ms` is the add time of queued items whose record has none. The other arguments and the errors
    are those of `kestrel.spark.fleet.verify.verify`.
    """
    table = _table(spark, paths, which, server, queues, now_ms, is_text=False)
    return table.where(F.col(PROBLEM.name).isNull()).drop(PROBLEM.name)


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
    problem = F.col(PROBLEM.name)
    observed = table.observe(
        seen,
        F.count_if(problem.isNull()).alias("items"),
        F.collect_list(problem).alias("problems"),
    )
    writer = observed.where(problem.isNull()).drop(PROBLEM.name).write.mode("errorifexists")
    try:
        if form is ExportFormat.PARQUET:
            writer.parquet(whole_path(out))
        else:
            writer.option("ignoreNullFields", "true").json(whole_path(out))
    except AnalysisException as error:
        if error.getCondition() == "PATH_ALREADY_EXISTS":
            raise SourceFailed(f"{out} already exists: name another folder for the items") from None
        raise
    problems = sorted(seen.get["problems"], key=lambda each: each["place"])
    return Exported(seen.get["items"], [OutcomeRemark(each["sentence"], each["is_complaint"]) for each in problems])


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

    def work(unit: Unit, folder: Folder) -> Iterator[pa.RecordBatch]:
        return export_rows(unit, folder, which, now, is_text=is_text)

    return map_units(spark, units, work, with_problem(is_text=is_text))
