"""A handmade report, as the page and the summary get it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

from pyspark.sql import Row

from kestrel.spark.report.report_data import InputSummary, ReportData, ReportSection

START_MS: Final = 1_700_000_000_000
NOW_MS: Final = START_MS + 3_700_000
INTERVAL_MS: Final = 60_000
HOSTILE: Final = (
    "<script>alert(1)</script>",
    '"onload="x',
    "$x_1$",
    "]]>&amp;",
    "{{7*7}}",
    'style="fill:#101112"',
    "caf\xe9\x85",
)
"""Names that queues can have."""


def figures(server: str | None, queue: str | None, **columns: Any) -> Row:
    """Return the figures of a queue with 100 items added and 90 removed."""
    made: dict[str, Any] = {
        "server": server,
        "queue": queue,
        "queues": 1,
        "items_added": 100,
        "bytes_added": 51_200,
        "items_removed": 90,
        "bytes_removed": 46_080,
        "changes": 190,
        "items_left": 10,
        "bytes_left": 5_120,
        "items_open": 2,
        "returns": 7,
        "first_add_ms": START_MS,
        "last_add_ms": START_MS + 3_600_000,
        "head_add_ms": START_MS + 3_500_000,
        "head_age_ms": 200_000,
    }
    return Row(**made | columns)


# Rows of views, without `scope` and the columns that no page shows.
throughput = Row("start_ms", "items_added", "bytes_added", "items_removed", "bytes_removed")
depth = Row("start_ms", "items_least", "items_most", "bytes_least", "bytes_most")
waiting = Row(
    *("server", "queue", "items", "items_unknown"),
    *(f"{name}_{bound}_ms" for name in ("p50", "p95", "p99", "max") for bound in ("least", "most")),
)
redeliveries = Row(
    *("items", "redelivered", "share", "returns", "most_returns"),
    *("never", "once", "twice", "three_to_five", "six_or_more"),
)
losses = Row(
    *("items_removed", "expired_yes", "expired_maybe", "bytes_expired_yes"),
    *("discarded_maybe", "discarded_unknown", "items_left", "expired_left"),
)
problem = Row("server", "folder", "file", "kind", "offset", "problem", "bytes_behind")


def waits(server: str | None, queue: str | None, scale: int = 1) -> Row:
    return waiting(server, queue, 92, 3, *(each * scale for each in (5, 40, 900, 1_500, 4_000, 9_000, 60_000, 61_000)))


def part(name: str | None, queues: list[tuple[str, str]], queue_count: int | None = None) -> ReportSection:
    """Return a report with an hour of adds and removals."""
    random = Random(str(name))
    rows = [
        figures(server, queue, items_added=900 // (place + 1), items_removed=800 // (place + 1))
        for place, (server, queue) in enumerate(queues)
    ]
    throughputs: list[Row] = []
    depths: list[Row] = []
    for place in range(60):
        added, removed = 40 + random.randrange(30), 30 + random.randrange(30)
        throughputs.append(throughput(START_MS + place * INTERVAL_MS, added, added * 512, removed, removed * 512))
        before = depths[-1].items_least if depths else 0
        least = max(0, before + added - removed)
        most = least + random.randrange(40)
        depths.append(depth(START_MS + place * INTERVAL_MS, least, most, least * 512, most * 512))
    throughputs.append(throughput(None, 0, 0, 12, 6_144))
    return ReportSection(
        name=name,
        figures=figures(name, None, queues=queue_count or len(queues)),
        throughput=throughputs,
        depth=depths,
        waiting=waits(name, None),
        redeliveries=redeliveries(92, 5, 5 / 92, 14, 7, 87, 2, 1, 1, 1),
        losses=losses(90, 4, 3, 2_048, 6, 11, 10, 1),
        busiest=rows,
        biggest=rows[:3],
        oldest=rows[:3],
        waits=[waits(server, queue, place + 1) for place, (server, queue) in enumerate(queues)],
    )


def report(*parts: ReportSection, **values: Any) -> ReportData:
    """Return a report of two servers, one with a problem in a file."""
    bad = problem("alpha", "/srv/alpha", "work<b>", "damaged", 56, "an opcode that there is not: 0x2a", 12)
    made = ReportData(
        now_ms=NOW_MS,
        interval_ms=INTERVAL_MS,
        pictured_ms=INTERVAL_MS,
        read=InputSummary(("alpha", "beta"), ("/srv/alpha", "/srv/beta"), 14, 123_456_789),
        problems=(bad,),
        problem_count=1,
        parts=parts,
        servers_left_out=0,
    )
    return replace(made, **values)


def hostile_report() -> ReportData:
    """Return a report of a fleet with hostile queue names."""
    queues = [(server, queue) for server in ("alpha", "<b>beta") for queue in HOSTILE]
    parts = [part(None, queues, 40)]
    parts += [part(server, [each for each in queues if each[0] == server]) for server in ("alpha", "<b>beta")]
    return report(*parts)
