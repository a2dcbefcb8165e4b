"""The writer of a report: stores each view as a table, and collects the few rows that a page shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from kestrel.spark.report.report_data import (
    MOST_PICTURED,
    MOST_PROBLEMS,
    MOST_SERVERS,
    InputSummary,
    ReportData,
    ReportSection,
)
from kestrel.spark.report.report_folder import TABLES
from kestrel.spark.report.views import set_views

Write = Callable[[DataFrame, str], DataFrame]


def write_report(
    spark: SparkSession, read: InputSummary, now_ms: int, interval_ms: int | None, write: Write
) -> ReportData:
    """Store the registered views as tables, and return the figures that a page shows.

    `now_ms` and `interval_ms` are those of the views. The collected figures are bounded: the fleet and `MOST_SERVERS`
    servers, 20 queues in each ranking, `MOST_PICTURED` intervals, and `MOST_PROBLEMS` problems.
    """
    tables = {name: write(spark.table(name), name) for name in TABLES}
    rows = _Rows(tables)
    interval_ms = interval_ms or _interval_ms(spark)
    pictured_ms = interval_ms
    if (rows.last_ms - rows.first_ms) // interval_ms >= MOST_PICTURED:
        set_views(spark, now_ms, None)
        pictured_ms = _interval_ms(spark)
        tables |= {name: spark.table(name) for name in ("throughput", "depth")}
    for name in ("throughput", "depth"):
        rows.bring(name, tables[name])
    problems = tables["problems"]
    return ReportData(
        now_ms=now_ms,
        interval_ms=interval_ms,
        pictured_ms=pictured_ms,
        read=read,
        problems=problems.orderBy("server", "folder", "file").limit(MOST_PROBLEMS).collect(),
        problem_count=problems.count(),
        parts=[rows.part(name) for name in rows.part_names()],
        servers_left_out=rows.server_count - len(rows.servers),
    )


def _interval_ms(spark: SparkSession) -> int:
    return int(spark.table("intervals").collect()[0]["interval_ms"])


class _Rows:
    """The rows that were collected from the tables, with times in ms since 1970."""

    def __init__(self, tables: Mapping[str, DataFrame]) -> None:
        of_servers = tables["queues"].where(F.col("scope") == "server")
        self.server_count = of_servers.count()
        most = of_servers.orderBy(F.col("changes").desc(), "server").limit(MOST_SERVERS).select("server")
        self.servers: list[str] = [row["server"] for row in most.collect()]
        self._is_wanted = F.col("server").isin(self.servers)
        self._rows: dict[str, defaultdict[str | None, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for name in ("queues", "waiting", "redeliveries", "expired"):
            self.bring(name, tables[name])
        is_wanted = (F.col("among") == "fleet") | self._is_wanted
        for row in in_ms(tables["rankings"]).where(is_wanted).orderBy("rank").collect():
            self._rows[row["ranking"]][row["server"] if row["among"] == "server" else None].append(row)
        self._waits = self._waits_of_busiest(tables["waiting"])
        self.first_ms = self.last_ms = 0
        for whole in self._rows["queues"][None]:
            self.first_ms, self.last_ms = whole["first_add_ms"] or 0, whole["last_add_ms"] or 0

    def bring(self, name: str, table: DataFrame) -> None:
        """Collect the rows of the fleet and of the selected servers."""
        is_wanted = (F.col("scope") == "fleet") | ((F.col("scope") == "server") & self._is_wanted)
        for row in in_ms(table.where(is_wanted)).collect():
            self._rows[name][row["server"]].append(row)

    def _waits_of_busiest(self, waits: DataFrame) -> Mapping[tuple[str, str], Row]:
        """Return the waiting times of the busiest queues."""
        keys = {(row["server"], row["queue"]) for rows in self._rows["busiest"].values() for row in rows}
        names = [F.struct(F.lit(server).alias("server"), F.lit(queue).alias("queue")) for server, queue in keys]
        rows = waits.where((F.col("scope") == "queue") & F.struct("server", "queue").isin(names)).collect()
        return {(row["server"], row["queue"]): row for row in rows}

    def part_names(self) -> list[str | None]:
        """Return the names of the sections: the fleet (None) if there are several servers, then the servers."""
        return [None, *self.servers] if self.server_count > 1 else [*self.servers]

    def part(self, name: str | None) -> ReportSection:
        """Return the section of a server, or of the fleet (None)."""

        def rows(view: str) -> list[Row]:
            return self._rows[view][name]

        queues = [(row["server"], row["queue"]) for row in rows("busiest")]
        return ReportSection(
            name=name,
            figures=rows("queues")[0],
            throughput=rows("throughput"),
            depth=rows("depth"),
            waiting=next(iter(rows("waiting")), None),
            redeliveries=next(iter(rows("redeliveries")), None),
            losses=rows("expired")[0],
            busiest=rows("busiest"),
            biggest=rows("biggest"),
            oldest=rows("oldest"),
            waits=[self._waits[queue] for queue in queues if queue in self._waits],
        )


def in_ms(table: DataFrame) -> DataFrame:
    """Return the table with its times in ms since 1970: `start_ms` instead of `start_time`."""
    times = [field.name for field in table.schema if isinstance(field.dataType, TimestampType)]
    for name in times:
        table = table.withColumn(name, F.unix_millis(name)).withColumnRenamed(name, f"{name.removesuffix('_time')}_ms")
    return table
