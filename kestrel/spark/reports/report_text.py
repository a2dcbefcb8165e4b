"""Text and JSON summaries of a report, without the data of items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import kestrel
from kestrel.config.units import format_duration_ms
from kestrel.spark.reports.formatting import (
    format_count,
    format_duration_range,
    format_name,
    format_number,
    format_percent,
    format_time,
)
from kestrel.spark.reports.report_data import ReportData, ReportSection
from kestrel.tools.formatting import align_table, show_duration, show_size

MARK: Final = "kestrel_report"
"""Key that identifies the summary of a report; its value is the version of the format."""

_VERSION: Final = 1
_OF_NAMES: Final = ("server", "queue")


def unfinished_summary() -> dict[str, Any]:
    """Return the summary of an unfinished report."""
    return {MARK: _VERSION, "version": kestrel.__version__, "state": "unfinished"}


def as_json(report: ReportData) -> dict[str, Any]:
    """Return the main figures as JSON; the tables have the rest."""
    servers = [part for part in report.parts if part.name is not None]
    return {
        **unfinished_summary(),
        "state": "finished",
        "now_ms": report.now_ms,
        "interval_ms": report.interval_ms,
        "read": asdict(report.read),
        "problems": report.problem_count,
        "fleet": _part_json(report.parts[0]) if report.parts else None,
        "servers": [{"server": part.name, **_part_json(part)} for part in servers],
        "servers_left_out": report.servers_left_out,
    }


def _part_json(part: ReportSection) -> dict[str, Any]:
    figures = {key: value for key, value in asdict(part.figures).items() if key not in _OF_NAMES}
    waiting = {} if part.waiting is None else asdict(part.waiting)
    return {
        **figures,
        "waiting": {key: value for key, value in waiting.items() if key not in _OF_NAMES} or None,
        "redeliveries": None if part.redeliveries is None else asdict(part.redeliveries),
        "expired": asdict(part.losses),
    }


def format_lines(report: ReportData) -> Iterator[str]:
    """Yield the lines for a terminal."""
    read = report.read
    yield (
        f"{format_count(len(read.servers), 'server')}, {format_count(len(read.folders), 'folder')}, "
        f"{format_count(read.files, 'file')}, {show_size(read.bytes)}"
    )
    if not report.parts:
        yield "the journals never had an item" if read.files else "there are no journals"
        return
    whole = report.parts[0]
    figures, waiting, back = whole.figures, whole.waiting, whole.redeliveries
    yield f"items added from {format_time(figures.first_add_ms)} to {format_time(figures.last_add_ms)}"
    yield (
        f"{format_count(figures.queues, 'queue')}: {format_number(figures.items_added)} items added,"
        f" {format_number(figures.items_removed)} removed, {format_number(figures.items_left)} left"
        f" ({show_size(figures.bytes_left)}), {format_number(figures.items_open)} open"
    )
    if waiting is not None and waiting.items:
        waits = ", ".join(
            f"{percentile} {format_duration_range(*bounds)}" for percentile, bounds in waiting.bounds().items()
        )
        yield f"waited until first taken: {waits}"
    if back is not None:
        taken, returns = format_number(back.items), format_count(back.returns, "time")
        yield f"came back: {format_percent(back.share)} of {taken} taken, {returns} in all"
    yield ""
    yield from align_table([_HEADINGS, *_rows(whole)])
    if figures.queues > len(whole.busiest):
        queues = format_number(figures.queues)
        yield f"the {len(whole.busiest)} busiest of {queues} queues; the table queues has them all"
    yield f"intervals of {format_duration_ms(report.interval_ms)}; unknown times are shown as ranges"


_HEADINGS: Final = ("queue", "added", "removed", "left", "bytes left", "came back", "p95 wait", "head")


def _rows(part: ReportSection) -> Iterator[list[str]]:
    waits = {(each.server, each.queue): each.bounds().get("p95") for each in part.waits}
    for each in part.busiest:
        wait = waits.get((each.server, each.queue))
        of_server = f" on {format_name(each.server or '')}" if part.name is None else ""
        yield [
            format_name(each.queue or "") + of_server,
            *(format_number(figure) for figure in (each.items_added, each.items_removed, each.items_left)),
            show_size(each.bytes_left),
            format_number(each.returns),
            "" if wait is None else format_duration_range(*wait),
            "" if each.head_age_ms is None else show_duration(each.head_age_ms),
        ]
