"""The tables of a report as SQL views: ``views(spark, "/var/spool/kestrel")``. `views.sql` has their statements.

Each journal is read once, by the task that also replays it, so no records are shuffled. The result is kept in memory
and on the disks of the workers, and all views use it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kestrel.disk.files import Disk
from kestrel.spark.columns import DATA
from kestrel.spark.journal_histories import PROBLEM, read_histories
from kestrel.spark.report.report_data import checked_interval_ms
from kestrel.spark.table.files import files_of
from kestrel.spark.table.options import find_locations
from kestrel.spark.table.planned_file import PlannedFile

_STATEMENTS: Final = tuple(
    statement.strip()
    for statement in resources.files(__package__).joinpath("views.sql").read_text("utf-8").split(";\n")
    if statement.strip()
)

DERIVED: Final = tuple(re.findall(r"^CREATE OR REPLACE TEMPORARY VIEW (\w+)", "\n".join(_STATEMENTS), re.MULTILINE))
"""Names of the views that `views.sql` makes."""

_READ: Final = "journals_read"
"""Name of the cached view of all that was read."""


def views(
    spark: SparkSession,
    path: str | Sequence[str],
    *,
    server: str | None = None,
    queue: str | None = None,
    max_items: int | Mapping[str, int] | None = None,
    now_ms: int | None = None,
    interval_ms: int | None = None,
) -> None:
    """Register the tables of a report on these folders as temporary views of the session (docs/spark.md#views).

    `path` names folders, files or patterns. `server` is the server name of all of them; by default their paths decide.
    `queue` is a pattern of names. `max_items` is the limit of all queues, or of each queue by name; it is needed to
    find possible discards. `now_ms` is when the journals were read, in ms since 1970; the default is the current time.
    The first query reads the journals. `drop_views` frees the memory. Raises `SourceFailed` or OSError.
    """
    paths = [path] if isinstance(path, str) else path
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    files = files_of(Disk(), find_locations(paths, server), queue)
    register_views(spark, files, now_ms, interval_ms, queue=queue, max_items=max_items)


def register_views(
    spark: SparkSession,
    files: Sequence[PlannedFile],
    now_ms: int,
    interval_ms: int | None,
    *,
    queue: str | None = None,
    max_items: int | Mapping[str, int] | None = None,
) -> None:
    """Register the views of these files, which must be those of whole journals. The arguments are those of `views`."""
    drop_views(spark)
    read = read_histories(spark, files, max_items, queue).persist(StorageLevel.MEMORY_AND_DISK)
    read.createOrReplaceTempView(_READ)
    is_history = F.col(PROBLEM).isNull()
    read.where(~is_history).select(f"{PROBLEM}.*").createOrReplaceTempView("problems")
    derive_views(read.where(is_history).drop(PROBLEM, DATA), now_ms, interval_ms)


def derive_views(histories: DataFrame, now_ms: int, interval_ms: int | None) -> None:
    """Register these histories as a view, and the views that are made of them."""
    spark = histories.sparkSession
    histories.createOrReplaceTempView("histories")
    set_views(spark, now_ms, interval_ms)
    for statement in _STATEMENTS:
        spark.sql(statement)


def set_views(spark: SparkSession, now_ms: int, interval_ms: int | None) -> None:
    """Replace the view `settings`. All other views follow it. Raises `SourceFailed` for an invalid interval."""
    interval = "NULL" if interval_ms is None else str(checked_interval_ms(interval_ms))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW settings AS"
        f" SELECT timestamp_millis({now_ms}) AS now, CAST({interval} AS BIGINT) AS interval_ms"
    )


def drop_views(spark: SparkSession) -> None:
    """Drop all views of a report, and free the memory and disks that hold what was read."""
    for name in (*reversed(DERIVED), "settings", "problems", "histories"):
        spark.catalog.dropTempView(name)
    if spark.catalog.tableExists(_READ):
        spark.catalog.uncacheTable(_READ)
        spark.catalog.dropTempView(_READ)
