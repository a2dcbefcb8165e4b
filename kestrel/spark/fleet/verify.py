"""Read-only verification of the queues of many folders, one task for each, as kestrel-qpack --verify does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kestrel.disk.files import Disk
from kestrel.spark.fleet.outcome_rows import REPORTS, outcome_batches
from kestrel.spark.fleet.units import Unit, folders_of, map_units, queue_units
from kestrel.tools.files.folder import Folder
from kestrel.tools.qpack import FolderMaintenance, QueueOutcome


def verify(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    server: str | None = None,
    queues: Sequence[bytes] = (),
    now_ms: int | None = None,
) -> DataFrame:
    """Return a row for each queue of the folders, or for those named (`kestrel.spark.fleet.outcome_rows.REPORTS`).

    Servers may be running. Spark reads the files each time the rows are used. `server` is the server name of all
    folders; by default their paths decide. `now_ms` is the time in ms since 1970. Raises `SourceFailed` or
    `ToolFailed`.
    """
    units = queue_units(Disk(), folders_of(paths, server), queues)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    return map_units(spark, units, lambda unit, folder: verify_unit(unit, folder, now), REPORTS)


def verify_unit(unit: Unit, folder: Folder, now_ms: int) -> Iterator[pa.RecordBatch]:
    """Verify the queues or remaining files of a unit, and yield at most one batch of results.

    `folder` contains the unit, or is the unit. `now_ms` is the add time of items whose records have none.
    """

    def work(upkeep: FolderMaintenance) -> Iterator[QueueOutcome]:
        if unit.found is not None:
            yield from upkeep.verify_found(unit.found)
        elif unit.is_rest:
            yield from upkeep.verify_rest(has_queues=unit.has_queues, is_all=True)
        else:
            yield from upkeep.verify(unit.names)

    return outcome_batches(unit, folder, now_ms, work, "cannot be read")
