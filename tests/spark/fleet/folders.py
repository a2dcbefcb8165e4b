"""Folders of many servers: the recorded ones, and the results of the tools for one folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from kestrel.disk.files import Disk
from kestrel.disk.lock import FolderLock
from kestrel.spark.fleet.export import ItemSelection, export_rows
from kestrel.spark.fleet.pack import pack_folder
from kestrel.spark.fleet.units import Unit, folder_units, folders_of, queue_units, reader_units
from kestrel.spark.fleet.verify import OutcomeRow, verify_unit
from kestrel.spark.table.options import JournalLocation
from kestrel.tools.files.folder import Folder

Said = tuple[int, list[dict[str, Any]], list[str]]
Qpack = Callable[..., Said]

TESTS = Path(__file__).parents[2]
NOW_MS = 1_700_003_600_000

RECORDED = sorted(
    folder
    for part in ("journal", "scroll")
    for folder in (TESTS / part / "golden").glob("*/*/")
    if any(path.is_file() for path in folder.iterdir())
)
"""Each is a folder that Kestrel or libkestrel wrote."""


def name_of(folder: Path) -> str:
    """A folder, with the name of its server or test."""
    return f"{folder.parent.name}-{folder.name}"


def fleet(root: Path, folders: Sequence[Path] = RECORDED) -> str:
    """Copy these folders, each as that of a server. Return the pattern that matches all."""
    for folder in folders:
        shutil.copytree(folder, root / name_of(folder) / "spool")
    return str(root / "*" / "spool")


def reports_of(units: Iterable[Unit], work: Callable[[Unit, int], Iterable[pa.RecordBatch]]) -> list[OutcomeRow]:
    """Return the rows of tasks for these units, without Spark."""
    return [OutcomeRow(row) for unit in units for batch in work(unit, NOW_MS) for row in batch.to_pylist()]


def verify_here(*paths: Path | str, disk: Disk | None = None) -> list[OutcomeRow]:
    """Return the rows of a verification of these folders, without Spark. `disk` is used by the tasks."""

    def work(unit: Unit, now_ms: int) -> Iterator[pa.RecordBatch]:
        return verify_unit(unit, Folder(disk or Disk(), unit.folder), now_ms)

    return reports_of(queue_units(Disk(), places(*paths), []), work)


def pack_here(*paths: Path | str, names: Sequence[bytes] = ()) -> list[OutcomeRow]:
    """Return the rows of a pack of these folders, without Spark."""
    return reports_of(folder_units(Disk(), places(*paths), names), pack_folder)


def places(*paths: Path | str) -> list[JournalLocation]:
    return folders_of([str(path) for path in paths], None)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Let a server own the folder during the block."""
    (folder / ".kestrel").mkdir()
    lock = FolderLock(bytes(folder / ".kestrel" / "lock"))
    try:
        yield
    finally:
        lock.release()


def told(reports: Iterable[OutcomeRow]) -> Said:
    """Return the exit status, objects and remarks, as kestrel-qpack has them."""
    ordered = sorted(reports, key=lambda report: report.place)
    objects = [fields for report in ordered if (fields := report.json()) is not None]
    for fields in objects:
        del fields["server"], fields["folder"]
    remarks = [sentence for report in ordered for sentence in report.remarks]
    return max((report.status for report in ordered), default=0), objects, remarks


def rows_of(
    *paths: Path | str, which: ItemSelection = ItemSelection.QUEUED, is_text: bool = False
) -> list[dict[str, Any]]:
    """Return all items of these folders and the problems, but no totals, without Spark."""
    units = reader_units(Disk(), places(*paths), [])
    works = (export_rows(unit, Folder(Disk(), unit.folder), which, NOW_MS, is_text=is_text) for unit in units)
    return [row for batches in works for row in without_totals(batches)]


def without_totals(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the rows of a unit without the last one, which has the totals."""
    *rows, _ = (row for batch in batches for row in batch.to_pylist())
    assert all(row.pop("totals") is None for row in rows)
    return rows
