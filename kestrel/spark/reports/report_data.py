"""What a page of a report is made of: plain values, collected from the tables, and bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

MOST_SERVERS: Final = 20
"""So many servers have a section of their own: the busiest ones."""

MOST_PROBLEMS: Final = 100
"""So many problems are listed."""

MOST_PICTURED: Final = 1000
"""A picture over time has no more intervals; if the tables have more, it has the default interval instead."""

_Figures = TypeVar("_Figures")


@dataclass(frozen=True, slots=True)
class SummaryFigures:
    """A row of the summary: of a queue, a server, or the fleet."""

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
    """What was added and removed in an interval; without a start, what nobody knows when."""

    start_ms: int | None
    items_added: int
    bytes_added: int
    items_removed: int
    bytes_removed: int


@dataclass(frozen=True, slots=True)
class DepthFigures:
    """How much there was at the end of an interval: at least, and at most."""

    start_ms: int
    items_least: int
    items_most: int
    bytes_least: int
    bytes_most: int


@dataclass(frozen=True, slots=True)
class WaitingFigures:
    """How long items waited, in ms: at least, and at most. Without items there are none."""

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
        """Of each percentile the least and the most, by its name."""
        pairs = {
            "p50": (self.p50_least_ms, self.p50_most_ms),
            "p95": (self.p95_least_ms, self.p95_most_ms),
            "p99": (self.p99_least_ms, self.p99_most_ms),
            "max": (self.max_least_ms, self.max_most_ms),
        }
        return {name: (least, most) for name, (least, most) in pairs.items() if least is not None and most is not None}


@dataclass(frozen=True, slots=True)
class RedeliveryFigures:
    """How often items that were taken came back."""

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
    """What had expired, or may have been discarded."""

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
    """A file that is not what it should be."""

    server: str
    folder: str
    file: str
    kind: str
    offset: int | None
    problem: str
    bytes_behind: int | None


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A server, or the fleet."""

    name: str | None
    """The server's; None for the fleet."""
    figures: SummaryFigures
    throughput: Sequence[ThroughputFigures]
    depth: Sequence[DepthFigures]
    waiting: WaitingFigures | None
    """None where nothing was taken; so are the next ones."""
    redeliveries: RedeliveryFigures | None
    losses: LossFigures
    busiest: Sequence[SummaryFigures]
    biggest: Sequence[SummaryFigures]
    oldest: Sequence[SummaryFigures]
    waits: Sequence[WaitingFigures]
    """Of the busiest queues, in their order."""


@dataclass(frozen=True, slots=True)
class InputSummary:
    """What the report is about, as it was when the reading was planned."""

    servers: Sequence[str]
    folders: Sequence[str]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReportData:
    """All of it."""

    now_ms: int
    """When the journals were read."""
    interval_ms: int
    """Of the tables."""
    pictured_ms: int
    """The interval of the pictures."""
    read: InputSummary
    problems: Sequence[ProblemFigures]
    """The first ones of them."""
    problem_count: int
    parts: Sequence[ReportSection]
    """The fleet if there are several servers, then the busiest of these; none if there was never an item."""
    servers_left_out: int


def figures_from_row(kind: type[_Figures], row: Mapping[str, Any]) -> _Figures:
    """The figures from a row that has columns of their names."""
    return kind(**{field.name: row[field.name] for field in fields(kind)})  # type: ignore[arg-type]
