"""The page of a report: a self-contained HTML file without scripts.

A queue's name may contain ``<script>``, so all text is escaped, and the page's content security policy forbids scripts,
network access and forms.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from jinja2 import Environment, StrictUndefined, Template

import kestrel
from kestrel.config.units import format_duration_ms
from kestrel.spark.reports import charts as pictures
from kestrel.spark.reports import report_text as words
from kestrel.spark.reports.charts import Chart
from kestrel.spark.reports.report_data import ReportData, ReportSection
from kestrel.tools.formatting import show_duration, show_size

_TEMPLATE: Final = "page.html"


def page(report: ReportData) -> str:
    """Return the page as text, to be written as UTF-8."""
    drawn = [_drawn(part, report.pictured_ms, f"p{place}") for place, part in enumerate(report.parts)]
    return _template().render(report=report, drawn=drawn, version=kestrel.__version__)


def _drawn(part: ReportSection, interval_ms: int, name: str) -> list[Chart]:
    has_servers = part.name is None
    drawn = (
        pictures.throughput(part, interval_ms, f"{name}-throughput"),
        pictures.depth(part, interval_ms, f"{name}-depth"),
        pictures.busiest(part.busiest, f"{name}-busiest", has_servers=has_servers),
        pictures.waiting(part.waits, f"{name}-waiting", has_servers=has_servers),
        pictures.redelivered(part.redeliveries, f"{name}-redelivered"),
    )
    return [picture for picture in drawn if picture is not None]


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    environment.filters |= {
        "between": words.format_duration_range,
        "count": words.format_count,
        "day": lambda ms: f"{words.format_moment(ms):%Y-%m-%d}",
        "duration": show_duration,
        "interval": format_duration_ms,
        "name": words.format_name,
        "number": words.format_number,
        "percent": words.format_percent,
        "size": show_size,
        "time": words.format_time,
    }
    return environment.from_string(resources.files("kestrel.spark.reports").joinpath(_TEMPLATE).read_text("utf-8"))
