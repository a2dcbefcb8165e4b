"""Packing of the queues of many folders, one task for each folder, as kestrel-qpack does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kestrel.disk.files import Disk
from kestrel.spark.fleet.units import Unit, folder_units, folders_of, map_units
from kestrel.spark.fleet.verify import REPORTS, outcome_batches
from kestrel.tools.files.folder import Folder


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
    folder = Folder(Disk(), unit.folder)
    return outcome_batches(
        unit, folder, now_ms, lambda upkeep: upkeep.pack(unit.names), "not packed", keeps_status=True
    )
