"""The tables of a report: writes each table, and collects the few rows that a page shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, TypeVar

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kestrel.spark.report.report_data import (
    MOST_PICTURED,
    MOST_PROBLEMS,
    MOST_SERVERS,
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
    figures_from_row,
    suitable_interval_ms,
)
from kestrel.spark.reports import (
    RANKINGS,
    Scope,
    all_rankings,
    depth,
    expired_and_discarded,
    redeliveries,
    summary,
    throughput,
    waiting,
)

Write = Callable[[str, DataFrame], None]

_Figures = TypeVar("_Figures")


def write_report(
    histories: DataFrame, problems: DataFrame, read: InputSummary, now_ms: int, interval_ms: int | None, write: Write
) -> ReportData:
    """Write all tables, and return the figures that a page shows.

    `now_ms` is when the journals are read, in ms since 1970. Without `interval_ms` the time range decides.
    Spark computes the histories once and caches them in memory and on disk. The collected figures are bounded: the
    fleet and `MOST_SERVERS` servers, 20 queues in each ranking, `MOST_PICTURED` intervals, and `MOST_PROBLEMS`
    problems.
    """
    with _held(problems) as wrong:
        write("problems", wrong)
        problem_count = wrong.count()
        first = wrong.orderBy("server", "folder", "file").limit(MOST_PROBLEMS).collect()
    with _held(histories) as items:
        write("histories", items)
        with _held(summary(items, now_ms)) as summaries:
            write("queues", summaries)
            rows = _Rows(summaries)
            interval_ms, pictured_ms = _intervals(rows, interval_ms)
            _collect_reports(rows, items, now_ms, interval_ms, pictured_ms, write)
    return ReportData(
        now_ms=now_ms,
        interval_ms=interval_ms,
        pictured_ms=pictured_ms,
        read=read,
        problems=[figures_from_row(ProblemFigures, row.asDict()) for row in first],
        problem_count=problem_count,
        parts=[rows.part(name) for name in rows.part_names()],
        servers_left_out=rows.server_count - len(rows.servers),
    )


@contextmanager
def _held(table: DataFrame) -> Iterator[DataFrame]:
    """Cache a table until the context ends."""
    table.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield table
    finally:
        table.unpersist()


def _intervals(rows: _Rows, interval_ms: int | None) -> tuple[int, int]:
    """Return the interval of the tables and that of the charts, in ms."""
    first_ms, last_ms = rows.time_range
    suitable_ms = suitable_interval_ms(first_ms, last_ms)
    interval_ms = interval_ms or suitable_ms
    is_pictured = (last_ms - first_ms) // interval_ms < MOST_PICTURED
    return interval_ms, interval_ms if is_pictured else suitable_ms


def _collect_reports(
    rows: _Rows, items: DataFrame, now_ms: int, interval_ms: int, pictured_ms: int, write: Write
) -> None:
    """Write each report, and collect the rows that the page needs."""
    for name, over_time in (("throughput", throughput), ("depth", depth)):
        with _held(over_time(items, interval_ms)) as table:
            write(name, table)
            if pictured_ms == interval_ms:
                rows.bring(name, table)
        if pictured_ms != interval_ms:
            rows.bring(name, over_time(items, pictured_ms, [Scope.SERVER, Scope.FLEET]))
    with _held(waiting(items, now_ms)) as table:
        write("waiting", table)
        rows.bring("waiting", table)
        rows.bring_queues(table)
    for name, table in (
        ("redeliveries", redeliveries(items)),
        ("expired", expired_and_discarded(items, now_ms)),
    ):
        with _held(table):
            write(name, table)
            rows.bring(name, table)


class _Rows:
    """The rows that were collected from the tables."""

    def __init__(self, summaries: DataFrame) -> None:
        of_servers = summaries.where(F.col("scope") == Scope.SERVER.value)
        self.server_count = of_servers.count()
        most = of_servers.orderBy(F.col("changes").desc(), "server").limit(MOST_SERVERS).select("server")
        self.servers: list[str] = [row["server"] for row in most.collect()]
        self._rows: dict[str, defaultdict[str | None, list[Row]]] = {}
        self.bring("summary", summaries)
        self._waits: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._rank(summaries)

    def _rank(self, summaries: DataFrame) -> None:
        """Collect all rankings in one job."""
        of_fleet = [F.col(f"{name}_of_fleet") for name in RANKINGS]
        rows = all_rankings(summaries).where(self._is_wanted() | F.coalesce(*of_fleet).isNotNull()).collect()
        for name in RANKINGS:
            ranks = [(row[f"{name}_of_fleet"], None, row) for row in rows]
            ranks += [(row[f"{name}_of_server"], row["server"], row) for row in rows]
            self._rows[name] = defaultdict(list)
            for _, among, row in sorted((each for each in ranks if each[0] is not None), key=itemgetter(0)):
                self._rows[name][among].append(row)

    @property
    def time_range(self) -> tuple[int, int]:
        """Times of the first and the last add, in ms since 1970; zeros if there is none."""
        row = next(iter(self._rows["summary"].get(None, ())), None)
        return (0, 0) if row is None or row["first_add_ms"] is None else (row["first_add_ms"], row["last_add_ms"])

    def bring(self, name: str, table: DataFrame) -> None:
        """Collect the rows of the fleet and of the selected servers."""
        is_wanted = (F.col("scope") == Scope.FLEET.value) | ((F.col("scope") == Scope.SERVER.value) & self._is_wanted())
        self._rows[name] = defaultdict(list)
        for row in table.where(is_wanted).collect():
            self._rows[name][row["server"]].append(row)

    def bring_queues(self, waits: DataFrame) -> None:
        """Collect the waiting times of the busiest queues."""
        ranked = [row for rows in self._rows["busiest"].values() for row in rows]
        keys = {(row["server"], row["queue"]) for row in ranked}
        names = [F.struct(F.lit(server).alias("server"), F.lit(queue).alias("queue")) for server, queue in keys]
        is_wanted = (F.col("scope") == Scope.QUEUE.value) & F.struct("server", "queue").isin(names)
        rows = waits.where(is_wanted).collect()
        self._waits = {(row["server"], row["queue"]): row.asDict() for row in rows}

    def part_names(self) -> list[str | None]:
        """Return the names of the sections: the fleet (None) if there are several servers, then the servers."""
        return [None, *self.servers] if self.server_count > 1 else [*self.servers]

    def part(self, name: str | None) -> ReportSection:
        """Return the section of a server, or of the fleet (None)."""
        busiest = self._each("busiest", name, SummaryFigures)
        queues = [(each.server or "", each.queue or "") for each in busiest]
        return ReportSection(
            name=name,
            figures=self._each("summary", name, SummaryFigures)[0],
            throughput=self._each("throughput", name, ThroughputFigures),
            depth=self._each("depth", name, DepthFigures),
            waiting=next(iter(self._each("waiting", name, WaitingFigures)), None),
            redeliveries=next(iter(self._each("redeliveries", name, RedeliveryFigures)), None),
            losses=self._each("expired", name, LossFigures)[0],
            busiest=busiest,
            biggest=self._each("biggest", name, SummaryFigures),
            oldest=self._each("oldest", name, SummaryFigures),
            waits=[figures_from_row(WaitingFigures, self._waits[queue]) for queue in queues if queue in self._waits],
        )

    def _each(self, table: str, name: str | None, kind: type[_Figures]) -> Sequence[_Figures]:
        return [figures_from_row(kind, row.asDict()) for row in self._rows[table].get(name, ())]

    def _is_wanted(self) -> Column:
        return F.col("server").isin(self.servers)
