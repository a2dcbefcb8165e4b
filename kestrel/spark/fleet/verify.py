"""Read-only verification of the queues of many folders, one task for each, as kestrel-qpack --verify does.

The results, and those of `kestrel.spark.fleet.pack`, are rows with the fields of kestrel-qpack, server and folder.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from kestrel.disk.files import Disk
from kestrel.server.startup_errors import EX_TRY_AGAIN
from kestrel.spark.columns import struct_of
from kestrel.spark.fleet.units import Unit, folders_of, map_units, queue_units
from kestrel.tools.files.folder import Folder
from kestrel.tools.formatting import align_table, count, show_path, show_text
from kestrel.tools.progress import no_progress
from kestrel.tools.qpack import FolderMaintenance, QueueOutcome, failed_outcome
from kestrel.tools.tool_runner import EX_FOUND, EX_OK, ToolFailed, explain_os_error

_STRING, _LONG = StringType(), LongType()

_DAMAGE: Final = struct_of(file=_STRING, offset=_LONG, problem=_STRING, kind=_STRING, bytes_behind=_LONG)
_REMARK: Final = struct_of(sentence=_STRING, is_complaint=BooleanType())
_FIELDS: Final = {
    "queue": _STRING,
    "state": _STRING,
    "reason": _STRING,
    "items": _LONG,
    "files": _LONG,
    "shared_files": _LONG,
    "bytes_before": _LONG,
    "bytes_after": _LONG,
    "damage": ArrayType(_DAMAGE, False),
}

REPORTS: Final = StructType(
    [
        *struct_of(server=_STRING, folder=_STRING),
        *(StructField(name, kind) for name, kind in (_FIELDS | {"line": _STRING}).items()),
        *struct_of(remarks=ArrayType(_REMARK, False), status=IntegerType(), place=_LONG),
    ]
)
"""One row for each queue, and one without `state` for each further remark on a folder.

The columns from `reason` to `damage` are the output of kestrel-qpack with ``--json``, and `line` is its text output.
`status` is its exit status. `place` is the position of the row among all.
"""

_PLACES_EACH: Final = 1 << 24

IN_USE: Final = "in use"
"""State of a folder that a server owns."""


_FIGURES: Final = {"files": "files", "bytes": "bytes_before", "packed": "bytes_after", "items": "items"}
"""Columns of a text table with numbers, and their names in `REPORTS`."""


class OutcomeRow:
    """A row of `REPORTS`."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self.server: str = row["server"]
        self.folder: str = row["folder"]
        self.state: str | None = row["state"]
        self.status: int = row["status"]
        self.place: int = row["place"]
        self.items: int = row["items"] or 0
        self.remarks: list[str] = [each["sentence"] for each in row["remarks"]]

    def json(self) -> dict[str, Any] | None:
        """Return the JSON object of kestrel-qpack with server and folder, or None for a row without `state`."""
        if self.state is None:
            return None
        given = {name: self._row[name] for name in _FIELDS if self._row[name] is not None or name == "queue"}
        return {"server": self.server, "folder": self.folder, **given}

    def cells(self) -> list[str] | None:
        """Return the cells of a text table, or None for a row that has only remarks."""
        row = self._row
        if row["line"] is None:
            return None
        shown = ["" if figure is None else str(figure) for figure in self.figures]
        return [show_text(self.server), show_text(row["queue"] or row["line"].partition(": ")[0]), row["state"], *shown]

    @property
    def figures(self) -> list[int | None]:
        """The figures of `_FIGURES`."""
        return [self._row[name] for name in _FIGURES.values()]


def outcome_batches(
    unit: Unit,
    folder: Folder,
    now_ms: int,
    work: Callable[[FolderMaintenance], Iterable[QueueOutcome]],
    failure: str,
    *,
    keeps_status: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Do the work of a unit, and yield at most one batch, with a row for each outcome.

    `folder` contains the unit, or is the unit. `now_ms` is the add time of items whose records have none. An OSError
    becomes a row whose reason begins with `failure`. A `ToolFailed` also becomes a row, with its status if
    `keeps_status`.
    """
    upkeep = FolderMaintenance("kestrel-fleet", "kestrel-fleet verify", folder, now_ms, no_progress)
    outcomes: list[tuple[QueueOutcome, int]] = []
    try:
        for each in work(upkeep):
            outcomes.append((each, EX_FOUND if each.has_complaint else EX_OK))
    except OSError as error:
        outcomes.append((failed_outcome(None, f"{failure}: {explain_os_error(error)}"), EX_FOUND))
    except ToolFailed as error:
        state = IN_USE if error.status == EX_TRY_AGAIN else "failed"
        outcomes.append((failed_outcome(None, str(error), state), error.status if keeps_status else EX_FOUND))
    rows = [
        {
            **(outcome.fields or {}),
            "server": unit.server,
            "folder": show_path(unit.folder),
            "line": outcome.line,
            "remarks": [remark._asdict() for remark in outcome.remarks],
            "status": status,
            "place": unit.number * _PLACES_EACH + place,
        }
        for place, (outcome, status) in enumerate(outcomes)
    ]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, to_arrow_schema(REPORTS, timezone="UTC"))


def format_outcomes(reports: Sequence[OutcomeRow]) -> Iterator[str]:
    """Yield the text output: a table with a line for each queue, one with a line for each server, and totals."""
    rows = [cells for report in reports if (cells := report.cells()) is not None]
    if rows:
        yield from align_table([["server", "queue", "state", *_FIGURES], *rows], left=(0, 1, 2))
    by_server: dict[str, list[OutcomeRow]] = {}
    for report in reports:
        if report.state is not None:
            by_server.setdefault(report.server, []).append(report)
    if len(by_server) > 1:
        yield ""
        summaries = [_summary_cells(server, of_server) for server, of_server in by_server.items()]
        yield from align_table([["server", "queues", *_FIGURES, "states"], *summaries], left=(0, 2 + len(_FIGURES)))
        yield ""
    with_state = [report for of_server in by_server.values() for report in of_server]
    folders = count(len({report.folder for report in with_state}), "folder")
    items = count(sum(report.items for report in with_state), "item")
    queues = count(len(with_state), "queue")
    yield f"{folders}, {queues}, {items}: {_states(with_state)}" if with_state else "no queues"


def _summary_cells(server: str, reports: Sequence[OutcomeRow]) -> list[str]:
    """Return the line of a server, with the sums of its queues."""
    sums = [sum(filter(None, figures)) for figures in zip(*(report.figures for report in reports), strict=True)]
    return [show_text(server), *map(str, (len(reports), *sums)), _states(reports)]


def _states(reports: Sequence[OutcomeRow]) -> str:
    states = Counter(report.state or "" for report in reports)
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()))


def verify(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    server: str | None = None,
    queues: Sequence[bytes] = (),
    now_ms: int | None = None,
) -> DataFrame:
    """Return a row for each queue of the folders, or for those named (`kestrel.spark.fleet.verify.REPORTS`).

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
