"""The bounded data of a report's page: rows of the views (docs/spark.md#the-views), with times in ms since 1970."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kestrel.spark.options import SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import Row

MOST_SERVERS: Final = 20
"""Number of servers that get a section, the busiest ones."""

MOST_PROBLEMS: Final = 100

MOST_PICTURED: Final = 1000
"""Maximum of intervals in a chart; if the tables have more, the chart uses the default interval."""

@dataclass(frozen=True, slots=True)
class ReportSection:
    """The section of a server, or of the fleet."""

    name: str | None
    """Name of the server, or None for the fleet."""
    figures: Row
    """Its row of the view `queues`."""
    throughput: Sequence[Row]
    depth: Sequence[Row]
    waiting: Row | None
    """Waiting times, or None if no item was read."""
    redeliveries: Row | None
    losses: Row
    """Its row of the view `expired`."""
    busiest: Sequence[Row]
    biggest: Sequence[Row]
    oldest: Sequence[Row]
    waits: Sequence[Row]
    """Waiting times of the busiest queues, in their order."""


@dataclass(frozen=True, slots=True)
class InputSummary:
    """The files that the report is based on, as planned."""

    servers: Sequence[str]
    folders: Sequence[str]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """The complete data of a report."""

    now_ms: int
    """Time at which the journals were read, in ms since 1970."""
    interval_ms: int
    pictured_ms: int
    read: InputSummary
    problems: Sequence[Row]
    problem_count: int
    parts: Sequence[ReportSection]
    """Section of the fleet if there are several servers, then those of the busiest; empty without items."""
    servers_left_out: int


def waiting_bounds(waiting: Row) -> dict[str, tuple[int, int]]:
    """Return the bounds in ms of each percentile of a row of the view `waiting`, by its name; none without items."""
    pairs = {name: (waiting[f"{name}_least_ms"], waiting[f"{name}_most_ms"]) for name in ("p50", "p95", "p99", "max")}
    return {name: pair for name, pair in pairs.items() if None not in pair}


LONGEST_MS: Final = 100 * 365 * 86_400_000


def checked_interval_ms(interval_ms: int) -> int:
    """Return the interval. Raises `SourceFailed` if it is out of range."""
    if not 1 <= interval_ms <= LONGEST_MS:
        raise SourceFailed(f"an interval must be from 1 ms to 100 years, not {interval_ms} ms")
    return interval_ms
