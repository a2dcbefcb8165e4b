"""A report made by hand, as its page and its summary get it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

from kestrel.spark.report.report_data import (
    DepthFigures,
    InputSummary,
    LossFigures,
    ProblemFigures,
    RedeliveryFigures,
    ReportData,
    ReportSection,
    SummaryFigures,
    ThroughputFigures,
    WaitingFigures,
)

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


def figures(server: str | None, queue: str | None, **columns: Any) -> SummaryFigures:
    """Of a queue with 100 items added, 90 removed."""
    made = SummaryFigures(
        server=server,
        queue=queue,
        queues=1,
        items_added=100,
        bytes_added=51_200,
        items_removed=90,
        bytes_removed=46_080,
        changes=190,
        items_left=10,
        bytes_left=5_120,
        items_open=2,
        returns=7,
        first_add_ms=START_MS,
        last_add_ms=START_MS + 3_600_000,
        head_add_ms=START_MS + 3_500_000,
        head_age_ms=200_000,
    )
    return replace(made, **columns)


def waiting(server: str | None, queue: str | None, scale: int = 1) -> WaitingFigures:
    bounds = [each * scale for each in (5, 40, 900, 1_500, 4_000, 9_000, 60_000, 61_000)]
    return WaitingFigures(server, queue, 92, 3, *bounds)


def part(name: str | None, queues: list[tuple[str, str]], queue_count: int | None = None) -> ReportSection:
    """With an hour of adds and removals."""
    random = Random(str(name))
    rows = [
        figures(server, queue, items_added=900 // (place + 1), items_removed=800 // (place + 1))
        for place, (server, queue) in enumerate(queues)
    ]
    throughput: list[ThroughputFigures] = []
    depth: list[DepthFigures] = []
    for place in range(60):
        added, removed = 40 + random.randrange(30), 30 + random.randrange(30)
        throughput.append(ThroughputFigures(START_MS + place * INTERVAL_MS, added, added * 512, removed, removed * 512))
        before = depth[-1].items_least if depth else 0
        least = max(0, before + added - removed)
        most = least + random.randrange(40)
        depth.append(DepthFigures(START_MS + place * INTERVAL_MS, least, most, least * 512, most * 512))
    throughput.append(ThroughputFigures(None, 0, 0, 12, 6_144))
    return ReportSection(
        name=name,
        figures=figures(name, None, queues=queue_count or len(queues)),
        throughput=throughput,
        depth=depth,
        waiting=waiting(name, None),
        redeliveries=RedeliveryFigures(92, 5, 5 / 92, 14, 7, 87, 2, 1, 1, 1),
        losses=LossFigures(90, 4, 3, 2_048, 6, 11, 10, 1),
        busiest=rows,
        biggest=rows[:3],
        oldest=rows[:3],
        waits=[waiting(server, queue, place + 1) for place, (server, queue) in enumerate(queues)],
    )


def report(*parts: ReportSection, **values: Any) -> ReportData:
    """Of two servers, one file with a problem."""
    problem = ProblemFigures("alpha", "/srv/alpha", "work<b>", "damaged", 56, "an opcode that there is not: 0x2a", 12)
    made = ReportData(
        now_ms=NOW_MS,
        interval_ms=INTERVAL_MS,
        pictured_ms=INTERVAL_MS,
        read=InputSummary(("alpha", "beta"), ("/srv/alpha", "/srv/beta"), 14, 123_456_789),
        problems=(problem,),
        problem_count=1,
        parts=parts,
        servers_left_out=0,
    )
    return replace(made, **values)


def hostile_report() -> ReportData:
    """A fleet whose queues are called as nobody should call them."""
    queues = [(server, queue) for server in ("alpha", "<b>beta") for queue in HOSTILE]
    parts = [part(None, queues, 40)]
    parts += [part(server, [each for each in queues if each[0] == server]) for server in ("alpha", "<b>beta")]
    return report(*parts)
