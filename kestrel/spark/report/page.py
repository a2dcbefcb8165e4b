"""The page of a report: a self-contained HTML file without scripts.

A queue's name may contain ``<script>``, so all text is escaped, and the page's content security policy forbids scripts,
network access and forms. Its charts are drawn by matplotlib, with accessible texts, the page's colours and unique ids.
The colours suit colour-blind readers, and shape or line style repeats their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from functools import cache
from importlib import resources
from io import StringIO
from typing import Any, Final
from warnings import catch_warnings, simplefilter
from xml.etree import ElementTree

from jinja2 import Environment, StrictUndefined, Template
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MaxNLocator
from pyspark.sql import Row

import kestrel
from kestrel.config.units import format_duration_ms
from kestrel.spark.report.report_data import ReportData, ReportSection, waiting_bounds
from kestrel.spark.report.report_text import (
    format_count,
    format_duration_range,
    format_label,
    format_moment,
    format_name,
    format_percent,
    format_time,
)
from kestrel.tools.formatting import show_duration, show_size

INK: Final = "#101112"
FAINT: Final = "#202122"
FIRST: Final = "#303132"
SECOND: Final = "#404142"
THIRD: Final = "#505152"
FOURTH: Final = "#606162"
_VARIABLES: Final = {
    INK: "var(--ink)",
    FAINT: "var(--line)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    THIRD: "var(--third)",
    FOURTH: "var(--fourth)",
}
"""Placeholder colours that become the page's variables, which have a light and a dark set."""

_SETTINGS: Final[Any] = {
    "text.parse_math": False,  # a queue may be called $x$
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "kestrel",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "date.epoch": "1970-01-01T00:00:00",
    "timezone": "UTC",
}

_SVG: Final = "{http://www.w3.org/2000/svg}"
_HREF: Final = "{http://www.w3.org/1999/xlink}href"
_REFERENCE: Final = re.compile(r"url\(#([^)]*)\)")
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as an SVG element, with title and caption."""

    title: str
    svg: str
    caption: str


def as_chart(figure: Figure, name: str, title: str, description: str, caption: str) -> Chart:
    """Return the figure of `_axes` as a chart. `name` must be unique in the page and prefixes each id."""
    drawn = StringIO()
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # the font lacks some characters, but the browser has other fonts
        figure.savefig(drawn, format="svg", metadata={"Date": None}, transparent=True)
    root = ElementTree.fromstring(drawn.getvalue())
    _strip(root)
    for element in root.iter():
        _adopt(element, name)
    for number, (tag, text) in enumerate((("title", title), ("desc", description))):
        words = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        words.text = text
        root.insert(number, words)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("xmlns", _SVG.strip("{}"))
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-desc")
    return Chart(title, ElementTree.tostring(root, encoding="unicode"), caption)


def _strip(root: ElementTree.Element) -> None:
    """Remove the metadata and the style sheet, which would apply to the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)


def _adopt(element: ElementTree.Element, name: str) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    attributes = {}
    for key, value in element.attrib.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == _HREF:
            key, value = "href", f"#{name}-{value.removeprefix('#')}"
        else:
            value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
        if key == "style":
            value = _COLOUR.sub(lambda match: _VARIABLES.get(match[0], match[0]), value)
        attributes[key] = value
    element.attrib.clear()
    element.attrib.update(attributes)


_WIDTH: Final = 5.4
_HEIGHT: Final = 2.9
_BAR: Final = 0.34
"""Height of a queue in a chart of queues. Sizes are in inches and scale with the page."""

_MARKS: Final = (("p50", FIRST, "o"), ("p95", SECOND, "s"), ("p99", THIRD, "^"), ("max", FOURTH, "D"))
_DAY_MS: Final = 86_400_000
"""Milliseconds of a day, the unit of the time axis, which counts days since 1970."""
_HOUR_MS: Final = 3_600_000
_DURATIONS_MS: Final = (
    *(1, 10, 100, 1_000, 10_000, 60_000, 600_000, _HOUR_MS, 6 * _HOUR_MS),
    *(_DAY_MS, 10 * _DAY_MS, 100 * _DAY_MS, 1_000 * _DAY_MS, 10_000 * _DAY_MS, 100_000 * _DAY_MS),
)


def throughput(part: ReportSection, interval_ms: int, name: str) -> Chart | None:
    """Return a chart of adds and removals over time, or None without known times."""
    known = {each.start_ms: each for each in part.throughput if each.start_ms is not None}
    if not known:
        return None
    first, last = min(known), max(known)
    starts = range(first, last + interval_ms, interval_ms)
    added = [known[start].items_added if start in known else 0 for start in starts]
    removed = [known[start].items_removed if start in known else 0 for start in starts]
    unknown = next((each for each in part.throughput if each.start_ms is None), None)
    title = f"Items added and removed per {format_duration_ms(interval_ms)}"
    caption = "A removal counts at its latest possible time: when the next item of its queue was added."
    if unknown is not None and unknown.items_removed:
        caption += f" {format_count(unknown.items_removed, 'removal')} since the last add are not shown."
    if unknown is not None and unknown.items_added:
        caption += f" {format_count(unknown.items_added, 'add')} without a time are not shown."
    with _axes(_HEIGHT) as (figure, axes):
        edges = [start / _DAY_MS for start in (*starts, last + interval_ms)]
        axes.stairs(added, edges, color=FIRST, linewidth=1.6, label="added", baseline=None)
        axes.stairs(removed, edges, color=SECOND, linewidth=1.6, linestyle="--", label="removed", baseline=None)
        _axes_of_counts_over_time(axes, edges[0], edges[-1])
        description = (
            f"From {format_time(first)} on: {sum(added):,} added, "
            f"{max(added):,} at most in an interval; "
            f"{sum(removed):,} removed, {max(removed):,} at most."
        )
        return as_chart(figure, name, title, description, caption)


def depth(part: ReportSection, interval_ms: int, name: str) -> Chart | None:
    """Return a chart of the depth over time as a band, or None without known times."""
    if not part.depth:
        return None
    rows = sorted(part.depth, key=lambda each: each.start_ms)
    ends = [each.start_ms + interval_ms for each in rows]
    moments = [each / _DAY_MS for each in (rows[0].start_ms, *ends)]
    least = [0, *(each.items_least for each in rows)]
    most = [0, *(each.items_most for each in rows)]
    title = "Items in the queues over time"
    with _axes(_HEIGHT) as (figure, axes):
        axes.fill_between(moments, least, most, step="post", color=FIRST, alpha=0.25, linewidth=0)
        axes.step(moments, most, where="post", color=FIRST, linewidth=1.6, label="at most")
        axes.step(moments, least, where="post", color=THIRD, linewidth=1.6, linestyle="--", label="at least")
        _axes_of_counts_over_time(axes, moments[0], moments[-1])
        description = (
            f"From {format_time(rows[0].start_ms)} to {format_time(ends[-1])}: "
            f"{max(least):,} to {max(most):,} items at the deepest, "
            f"{least[-1]:,} to {most[-1]:,} at the end."
        )
        caption = "The true depth is within the band: journals say only between which adds an item was removed."
        return as_chart(figure, name, title, description, caption)


def waiting(waits: Sequence[Row], name: str, *, has_servers: bool) -> Chart | None:
    """Return a chart of the waiting times of each queue, a range for each percentile, or None without items."""
    rows = [each for each in waits if each.items]
    if not rows:
        return None
    all_bounds = [waiting_bounds(row) for row in rows]
    title = "How long items waited until they were first taken"
    with _axes(0.9 + _BAR * 1.3 * len(rows)) as (figure, axes):
        for place, bounds in enumerate(all_bounds):
            for number_, (percentile, colour, mark) in enumerate(_MARKS):
                ends = [max(each, 1) for each in bounds[percentile]]  # a logarithmic axis has no 0
                y = place - 0.27 + 0.18 * number_
                legend = percentile if place == 0 else None
                axes.plot(ends, [y, y], color=colour, marker=mark, markersize=3.6, linewidth=2, label=legend)
        axes.set_xscale("log")
        least = min(each for bounds in all_bounds for each, _ in bounds.values())
        most = max(each for bounds in all_bounds for _, each in bounds.values())
        _duration_axis(axes, max(least, 1), max(most, 1))
        _queue_axis(axes, [_queue_label(row.server, row.queue, has_servers) for row in rows])
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0, columnspacing=1, handlelength=1)
        worst = max(rows, key=lambda row: waiting_bounds(row)["p95"])
        longest = format_duration_range(*waiting_bounds(worst)["p95"])
        description = (
            f"{format_count(len(rows), 'queue')}. The longest p95 has "
            f"{_queue_label(worst.server, worst.queue, has_servers)}: {longest}."
        )
        return as_chart(figure, name, title, description, "Each line shows the range of possible values.")


def redelivered(figures: Row | None, name: str) -> Chart | None:
    """Return a histogram of redeliveries, or None if there were none."""
    if figures is None or not figures.redelivered:
        return None
    counts = [figures.once, figures.twice, figures.three_to_five, figures.six_or_more]
    names = ["once", "twice", "3 to 5 times", "6 times or more"]
    title = "Items that came back"
    with _axes(_HEIGHT) as (figure, axes):
        bars = axes.bar(range(len(counts)), counts, width=0.6, color=SECOND)
        axes.bar_label(bars, [f"{each:,}" for each in counts], padding=2, color=INK)
        axes.set_xticks(range(len(names)), names)
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.12)
        _count_axis(axes)
        told = ", ".join(f"{each:,} {name_}" for each, name_ in zip(counts, names, strict=True))
        never = f"{figures.never:,} of {figures.items:,} items that were taken never came back"
        caption = f"{never}; {format_percent(figures.share)} did, one of them {figures.most_returns} times."
        return as_chart(figure, name, title, f"Of {figures.items:,} taken: {told}.", caption)


def busiest(queues: Sequence[Row], name: str, *, has_servers: bool) -> Chart | None:
    """Return a bar chart of the queues with the most adds and removals, or None without queues."""
    if not queues:
        return None
    title = "The busiest queues"
    with _axes(0.9 + _BAR * len(queues)) as (figure, axes):
        places = range(len(queues))
        added, removed = [each.items_added for each in queues], [each.items_removed for each in queues]
        outlined: Any = {"facecolor": "none", "edgecolor": SECOND, "linewidth": 1.4}
        axes.barh([place - 0.19 for place in places], added, height=0.36, color=FIRST, label="added")
        axes.barh([place + 0.19 for place in places], removed, height=0.36, **outlined, label="removed")
        _queue_axis(axes, [_queue_label(each.server, each.queue, has_servers) for each in queues])
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        _legend(axes)
        top = queues[0]
        description = (
            f"{format_count(len(queues), 'queue')}, the busiest first: "
            f"{_queue_label(top.server, top.queue, has_servers)} with "
            f"{top.items_added:,} items added and {top.items_removed:,} removed."
        )
        return as_chart(
            figure, name, title, description, "Items added and removed, by put, get, expiry, flush or discard."
        )


# Axes.


@contextmanager
def _axes(height: float) -> Iterator[tuple[Figure, Axes]]:
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure, figure.add_subplot()


def _axes_of_counts_over_time(axes: Axes, first: float, last: float) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=6, tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(first, last)
    _count_axis(axes)
    _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)


def _count_axis(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _duration_axis(axes: Axes, least_ms: int, most_ms: int) -> None:
    left, right = least_ms * 0.7, most_ms * 1.4
    ticks = [tick for tick in _DURATIONS_MS if left <= tick <= right]
    step = 1 + len(ticks) // 7
    axes.xaxis.set_major_locator(FixedLocator(ticks[::step] or [least_ms]))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(round(value))))
    axes.set_xlim(left, right)


def _tick(ms: int) -> str:
    """Return the label of a round duration, in one unit."""
    for unit_ms, unit in ((_DAY_MS, "d"), (_HOUR_MS, "h"), (60_000, "m"), (1_000, "s")):
        if ms >= unit_ms:
            return f"{ms // unit_ms}{unit}"
    return f"{ms}ms"


def _queue_axis(axes: Axes, names: Sequence[str]) -> None:
    """Label the queues, with the first one at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _queue_label(server: str | None, queue: str | None, has_server: bool) -> str:
    of_queue = format_label(queue or "")
    return f"{of_queue}\n{format_label(server or '')}" if has_server else of_queue


# The page.


_TEMPLATE: Final = "page.html"


def page(report: ReportData) -> str:
    """Return the page as text, to be written as UTF-8."""
    drawn = [_drawn(part, report.pictured_ms, f"p{place}") for place, part in enumerate(report.parts)]
    return _template().render(report=report, drawn=drawn, version=kestrel.__version__)


def _drawn(part: ReportSection, interval_ms: int, name: str) -> list[Chart]:
    has_servers = part.name is None
    drawn = (
        throughput(part, interval_ms, f"{name}-throughput"),
        depth(part, interval_ms, f"{name}-depth"),
        busiest(part.busiest, f"{name}-busiest", has_servers=has_servers),
        waiting(part.waits, f"{name}-waiting", has_servers=has_servers),
        redelivered(part.redeliveries, f"{name}-redelivered"),
    )
    return [picture for picture in drawn if picture is not None]


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters |= {
        "between": format_duration_range,
        "bounds": waiting_bounds,
        "count": format_count,
        "day": lambda ms: f"{format_moment(ms):%Y-%m-%d}",
        "duration": show_duration,
        "interval": format_duration_ms,
        "name": format_name,
        "number": "{:,}".format,
        "percent": format_percent,
        "size": show_size,
        "time": format_time,
    }
    return environment.from_string(resources.files("kestrel.spark.report").joinpath(_TEMPLATE).read_text("utf-8"))
