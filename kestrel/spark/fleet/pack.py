"""Packing of the queues of many folders, one task for each folder, as kestrel-qpack does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kestrel.disk.files import Disk
from kestrel.server.startup_errors import EX_TRY_AGAIN
from kestrel.spark.fleet.jobs import map_units
from kestrel.spark.fleet.outcome_rows import REPORTS, outcome_batch
from kestrel.spark.fleet.units import Unit, folder_units, folders_of
from kestrel.tools.files.folder import Folder
from kestrel.tools.qpack.maintenance import FolderMaintenance
from kestrel.tools.qpack.outcomes import QueueOutcome, failed_outcome
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, ToolFailed, explain_os_error

IN_USE: Final = "in use"
"""State of a folder that a server owns."""


def pack(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    server: str | None = None,
    queues: Sequence[bytes] = (),
    now_ms: int | None = None,
) -> DataFrame:
    """Pack all queues of the folders, or those named, and return the results, one row for each queue.

    The work is complete on return. A folder that a server owns, or that cannot be written, becomes a row, and the other
    folders are packed. Arguments, rows and errors are those of `kestrel.spark.fleet.verify.verify`.
    """
    units = folder_units(Disk(), folders_of(paths, server), queues)
    now = int(time.time() * 1000) if now_ms is None else now_ms
    rows = map_units(spark, units, lambda unit, _: pack_folder(unit, now), REPORTS).collect()
    return spark.createDataFrame(rows, REPORTS)


def pack_folder(unit: Unit, now_ms: int) -> Iterator[pa.RecordBatch]:
    """Pack the unit's queues, or all of its folder, unlock the folder, and yield at most one batch of results."""
    outcomes = list(_outcomes(unit, Folder(Disk(), unit.folder), now_ms))
    if outcomes:
        yield outcome_batch(unit, outcomes)


def _outcomes(unit: Unit, folder: Folder, now_ms: int) -> Iterator[tuple[QueueOutcome, int]]:
    upkeep = FolderMaintenance("kestrel-fleet", "kestrel-fleet verify", folder, now_ms, may_show_progress=False)
    try:
        for each in upkeep.pack(unit.names):
            yield each, EX_FOUND if any(each.complaints) else EX_OK
    except OSError as error:
        yield failed_outcome(None, f"not packed: {explain_os_error(error)}"), EX_FOUND
    except ToolFailed as error:
        state = IN_USE if error.status == EX_TRY_AGAIN else "failed"
        yield failed_outcome(None, str(error), state), error.status
