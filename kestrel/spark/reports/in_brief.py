"""A report in a few lines for a person, and as JSON for a program. Neither has any item's data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import kestrel
from kestrel.config.units import format_duration_ms
from kestrel.spark.reports.values import Part, Report
from kestrel.spark.reports.words import between, count, name, number, percent, time
from kestrel.tools.shown import aligned, show_duration, show_size

MARK: Final = "kestrel_report"
"""The key by which the summary of a report is known; its value is the version of what stands there."""

_VERSION: Final = 1
_OF_NAMES: Final = ("server", "queue")


def begun() -> dict[str, Any]:
    """The summary of a report that is not finished."""
    return {MARK: _VERSION, "version": kestrel.__version__, "state": "unfinished"}


def as_json(report: Report) -> dict[str, Any]:
    """What a program may want to know first. The tables have the rest."""
    servers = [part for part in report.parts if part.name is not None]
    return {
        **begun(),
        "state": "finished",
        "now_ms": report.now_ms,
        "interval_ms": report.interval_ms,
        "read": asdict(report.read),
        "problems": report.problem_count,
        "fleet": _part_json(report.parts[0]) if report.parts else None,
        "servers": [{"server": part.name, **_part_json(part)} for part in servers],
        "servers_left_out": report.servers_left_out,
    }


def _part_json(part: Part) -> dict[str, Any]:
    figures = {key: value for key, value in asdict(part.figures).items() if key not in _OF_NAMES}
    waiting = {} if part.waiting is None else asdict(part.waiting)
    return {
        **figures,
        "waiting": {key: value for key, value in waiting.items() if key not in _OF_NAMES} or None,
        "redeliveries": None if part.redeliveries is None else asdict(part.redeliveries),
        "expired": asdict(part.losses),
    }


def as_lines(report: Report) -> Iterator[str]:
    """For a terminal."""
    read = report.read
    yield (
        f"{count(len(read.servers), 'server')}, {count(len(read.folders), 'folder')}, {count(read.files, 'file')},"
        f" {show_size(read.bytes)}"
    )
    if not report.parts:
        yield "no item there, and there never was one" if read.files else "no journal there"
        return
    whole = report.parts[0]
    figures, waiting, back = whole.figures, whole.waiting, whole.redeliveries
    yield f"items added from {time(figures.first_add_ms)} to {time(figures.last_add_ms)}"
    yield (
        f"{count(figures.queues, 'queue')}: {number(figures.items_added)} items added,"
        f" {number(figures.items_removed)} removed, {number(figures.items_left)} left"
        f" ({show_size(figures.bytes_left)}), {number(figures.items_open)} open"
    )
    if waiting is not None and waiting.items:
        waits = ", ".join(f"{percentile} {between(*bounds)}" for percentile, bounds in waiting.bounds().items())
        yield f"waited until first taken: {waits}"
    if back is not None:
        yield f"came back: {percent(back.share)} of {number(back.items)} taken, {count(back.returns, 'time')} in all"
    yield ""
    yield from aligned([_HEADINGS, *_rows(whole)])
    if figures.queues > len(whole.busiest):
        yield f"the {len(whole.busiest)} busiest of {number(figures.queues)} queues; the table queues has them all"
    yield f"intervals of {format_duration_ms(report.interval_ms)}; what has no time in a journal is between two figures"


_HEADINGS: Final = ("queue", "added", "removed", "left", "bytes left", "came back", "p95 wait", "head")


def _rows(part: Part) -> Iterator[list[str]]:
    waits = {(each.server, each.queue): each.bounds().get("p95") for each in part.waits}
    for each in part.busiest:
        wait = waits.get((each.server, each.queue))
        of_server = f" on {name(each.server or '')}" if part.name is None else ""
        yield [
            name(each.queue or "") + of_server,
            *(number(figure) for figure in (each.items_added, each.items_removed, each.items_left)),
            show_size(each.bytes_left),
            number(each.returns),
            "" if wait is None else between(*wait),
            "" if each.head_age_ms is None else show_duration(each.head_age_ms),
        ]
