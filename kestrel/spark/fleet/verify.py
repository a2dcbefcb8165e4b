"""Read-only verification of the queues of many folders, one task for each, as kestrel-qpack --verify does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kestrel.disk.files import Disk
from kestrel.spark.fleet.jobs import map_units
from kestrel.spark.fleet.outcome_rows import REPORTS, outcome_batch
from kestrel.spark.fleet.units import Unit, UnitKind, folders_of, queue_units
from kestrel.tools.files.folder import Folder
from kestrel.tools.qpack.maintenance import FolderMaintenance
from kestrel.tools.qpack.outcomes import QueueOutcome, failed_outcome
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, ToolFailed, explain_os_error


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
    """Verify the queues or remaining files of one unit of a fleet job. Yield at most one batch, with a row for each
    result.

    `folder` contains the unit, or is the unit. `now_ms` is the add time of items whose records have none.
    """
    outcomes = list(_outcomes(unit, folder, now_ms))
    if outcomes:
        yield outcome_batch(unit, [(each, EX_FOUND if any(each.complaints) else EX_OK) for each in outcomes])


def _outcomes(unit: Unit, folder: Folder, now_ms: int) -> Iterator[QueueOutcome]:
    upkeep = FolderMaintenance("kestrel-fleet", "kestrel-fleet verify", folder, now_ms, may_show_progress=False)
    try:
        if unit.kind is UnitKind.FOLDER:
            yield from upkeep.verify(unit.names)
        elif unit.kind is UnitKind.REST:
            yield from upkeep.verify_rest(has_queues=unit.has_queues, is_all=True)
        elif unit.found is not None:
            yield from upkeep.verify_found(unit.found)
    except OSError as error:
        yield failed_outcome(None, f"cannot be read: {explain_os_error(error)}")
    except ToolFailed as error:
        yield failed_outcome(None, str(error))
