"""The bounded data of a report's page, as plain values collected from the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from kestrel.spark.options import SourceFailed

MOST_SERVERS: Final = 20
"""Number of servers that get a section, the busiest ones."""

MOST_PROBLEMS: Final = 100

MOST_PICTURED: Final = 1000
"""Maximum of intervals in a chart; if the tables have more, the chart uses the default interval."""

_Figures = TypeVar("_Figures")


@dataclass(frozen=True, slots=True)
class SummaryFigures:
    """A row of the summary for a queue, a server, or the fleet."""

    server: str | None
    queue: str | None
    queues: int
    items_added: int
    bytes_added: int
    items_removed: int
    bytes_removed: int
    changes: int
    items_left: int
    bytes_left: int
    items_open: int
    returns: int
    first_add_ms: int | None
    last_add_ms: int | None
    head_add_ms: int | None
    head_age_ms: int | None


@dataclass(frozen=True, slots=True)
class ThroughputFigures:
    """Adds and removals in an interval; those at unknown times if `start_ms` is None."""

    start_ms: int | None
    items_added: int
    bytes_added: int
    items_removed: int
    bytes_removed: int


@dataclass(frozen=True, slots=True)
class DepthFigures:
    """Bounds of the depth at the end of an interval."""

    start_ms: int
    items_least: int
    items_most: int
    bytes_least: int
    bytes_most: int


@dataclass(frozen=True, slots=True)
class WaitingFigures:
    """Bounds of waiting times in ms, None without items."""

    server: str | None
    queue: str | None
    items: int
    items_unknown: int
    p50_least_ms: int | None
    p50_most_ms: int | None
    p95_least_ms: int | None
    p95_most_ms: int | None
    p99_least_ms: int | None
    p99_most_ms: int | None
    max_least_ms: int | None
    max_most_ms: int | None

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Return the bounds of each percentile by its name."""
        names = ("p50", "p95", "p99", "max")
        pairs = {name: (getattr(self, f"{name}_least_ms"), getattr(self, f"{name}_most_ms")) for name in names}
        return {name: pair for name, pair in pairs.items() if None not in pair}


@dataclass(frozen=True, slots=True)
class RedeliveryFigures:
    """Redeliveries of items that were read."""

    items: int
    redelivered: int
    share: float
    returns: int
    most_returns: int
    never: int
    once: int
    twice: int
    three_to_five: int
    six_or_more: int


@dataclass(frozen=True, slots=True)
class LossFigures:
    """Items that had expired or may have been discarded."""

    items_removed: int
    expired_yes: int
    expired_maybe: int
    bytes_expired_yes: int
    discarded_maybe: int
    discarded_unknown: int
    items_left: int
    expired_left: int


@dataclass(frozen=True, slots=True)
class ProblemFigures:
    """A file that is incomplete, damaged or unreadable."""

    server: str
    folder: str
    file: str
    kind: str
    offset: int | None
    problem: str
    bytes_behind: int | None


@dataclass(frozen=True, slots=True)
class ReportSection:
    """The section of a server, or of the fleet."""

    name: str | None
    """Name of the server, or None for the fleet."""
    figures: SummaryFigures
    throughput: Sequence[ThroughputFigures]
    depth: Sequence[DepthFigures]
    waiting: WaitingFigures | None
    """Waiting times, or None if no item was read."""
    redeliveries: RedeliveryFigures | None
    losses: LossFigures
    busiest: Sequence[SummaryFigures]
    biggest: Sequence[SummaryFigures]
    oldest: Sequence[SummaryFigures]
    waits: Sequence[WaitingFigures]
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
    problems: Sequence[ProblemFigures]
    problem_count: int
    parts: Sequence[ReportSection]
    """Section of the fleet if there are several servers, then those of the busiest; empty without items."""
    servers_left_out: int


def figures_from_row(kind: type[_Figures], row: Mapping[str, Any]) -> _Figures:
    """Return the figures of a row with columns of the same names."""
    return kind(**{field.name: row[field.name] for field in fields(kind)})  # type: ignore[arg-type]


LONGEST_MS: Final = 100 * 365 * 86_400_000


def checked_interval_ms(interval_ms: int) -> int:
    """Return the interval. Raises `SourceFailed` if it is out of range."""
    if not 1 <= interval_ms <= LONGEST_MS:
        raise SourceFailed(f"an interval must be from 1 ms to 100 years, not {interval_ms} ms")
    return interval_ms
