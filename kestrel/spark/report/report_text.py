"""The words of a report: names and figures, and text and JSON summaries without the data of items."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import kestrel
from kestrel.config.units import format_duration_ms
from kestrel.spark.report.report_data import ReportData, ReportSection, waiting_bounds
from kestrel.tools.formatting import align_table, show_duration, show_size, show_text

if TYPE_CHECKING:
    from pyspark.sql import Row

LONGEST_LABEL: Final = 32
"""Maximum length of a name in a chart, in characters."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HIDDEN: Final = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff0-\uffff]")
"""Characters that are invisible, change the text direction, or are not allowed in XML."""


def format_name(text: str) -> str:
    """Return a name with invisible characters escaped."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", show_text(text))


def format_label(text: str) -> str:
    """Return a name for a chart; the middle of a long name is left out."""
    whole = format_name(text)
    half = LONGEST_LABEL // 2
    return whole if len(whole) <= LONGEST_LABEL else f"{whole[: half - 1]}\u2026{whole[-half:]}"


def format_count(value: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def format_percent(share: float) -> str:
    """Return a share as a percentage; only an exact 0 or 1 is shown as 0% or 100%."""
    shown = f"{100 * share:.2g}" if 0 < share < 0.1 else f"{100 * share:.1f}".removesuffix(".0")
    if shown == "100" and share < 1:
        shown = "over 99.9"
    return f"{shown}%"


def format_moment(time_ms: int) -> datetime:
    """Return a time in UTC."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def format_time(time_ms: int | None) -> str:
    """Return the text of a time in UTC, in seconds."""
    return "unknown" if time_ms is None else f"{format_moment(time_ms):%Y-%m-%d %H:%M:%S} UTC"


def format_duration_range(least_ms: int, most_ms: int) -> str:
    """Return the text of a range of durations, or one duration if both look the same."""
    least, most = show_duration(least_ms), show_duration(most_ms)
    return least if least == most else f"{least} to {most}"


MARK: Final = "kestrel_report"
"""Key that identifies the summary of a report; its value is the version of the format."""

_VERSION: Final = 1
_OF_PARTS: Final = ("scope", "server", "queue")
"""Columns that all rows of a section share."""


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
    return {
        **_row_json(part.figures),
        "waiting": part.waiting and _row_json(part.waiting),
        "redeliveries": part.redeliveries and _row_json(part.redeliveries),
        "expired": _row_json(part.losses),
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.asDict().items() if key not in _OF_PARTS}


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
        f"{format_count(figures.queues, 'queue')}: {figures.items_added:,} items added,"
        f" {figures.items_removed:,} removed, {figures.items_left:,} left"
        f" ({show_size(figures.bytes_left)}), {figures.items_open:,} open"
    )
    if waiting is not None and waiting.items:
        waits = ", ".join(
            f"{percentile} {format_duration_range(*bounds)}" for percentile, bounds in waiting_bounds(waiting).items()
        )
        yield f"waited until first taken: {waits}"
    if back is not None:
        returns = format_count(back.returns, "time")
        yield f"came back: {format_percent(back.share)} of {back.items:,} taken, {returns} in all"
    yield ""
    yield from align_table([_HEADINGS, *_rows(whole)])
    if figures.queues > len(whole.busiest):
        yield f"the {len(whole.busiest)} busiest of {figures.queues:,} queues; the table queues has them all"
    yield f"intervals of {format_duration_ms(report.interval_ms)}; unknown times are shown as ranges"


_HEADINGS: Final = ("queue", "added", "removed", "left", "bytes left", "came back", "p95 wait", "head")


def _rows(part: ReportSection) -> Iterator[list[str]]:
    waits = {(each.server, each.queue): waiting_bounds(each).get("p95") for each in part.waits}
    for each in part.busiest:
        wait = waits.get((each.server, each.queue))
        of_server = f" on {format_name(each.server or '')}" if part.name is None else ""
        yield [
            format_name(each.queue or "") + of_server,
            *(f"{figure:,}" for figure in (each.items_added, each.items_removed, each.items_left)),
            show_size(each.bytes_left),
            f"{each.returns:,}",
            "" if wait is None else format_duration_range(*wait),
            "" if each.head_age_ms is None else show_duration(each.head_age_ms),
        ]
