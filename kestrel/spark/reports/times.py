"""Reports over time: throughput and depth.

Journals record when an item was added. A removal has no time of its own, only bounds from the adds around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kestrel.spark.reports.intervals import checked_interval_ms, suitable_interval_ms
from kestrel.spark.reports.items import items_of, start_of
from kestrel.spark.reports.scopes import ALL, KEYS, Scope, aggregated

_MINUTE_MS: Final = 60_000


def interval_of(histories: DataFrame) -> int:
    """Return the default interval for the time range in ms, or a minute without add times.

    Runs a job with a result of one row.
    """
    bounds = items_of(histories).agg(F.min("add_ms").alias("first"), F.max("add_ms").alias("last")).first()
    if bounds is None or bounds["first"] is None:
        return _MINUTE_MS
    return suitable_interval_ms(bounds["first"], bounds["last"])


def throughput(histories: DataFrame, interval_ms: int | None = None, scopes: Sequence[Scope] = ALL) -> DataFrame:
    """Return the number of items and bytes added and removed in each interval with changes.

    Columns: `KEYS`, ``start_ms`` (start of the interval, in ms since 1970), ``items_added``, ``bytes_added``,
    ``items_removed``, ``bytes_removed``. A removal counts at its latest possible time, when the next item of its queue
    was added. Expiry, flush and discards also count as removals. A row with a null ``start_ms`` has changes at unknown
    times: adds without a time, and removals since the last add.
    """
    interval_ms = checked_interval_ms(interval_ms if interval_ms is not None else interval_of(histories))
    none, one, size = F.lit(0).cast("long"), F.lit(1).cast("long"), F.col("data_bytes")
    events = F.array(
        F.struct(
            start_of("add_ms", interval_ms).alias("start_ms"),
            *(one.alias("items_added"), size.alias("bytes_added")),
            *(none.alias("items_removed"), none.alias("bytes_removed")),
        ),
        F.struct(
            start_of("gone_before_ms", interval_ms).alias("start_ms"),
            *(none.alias("items_added"), none.alias("bytes_added")),
            F.when(F.col("is_gone"), one).otherwise(none).alias("items_removed"),
            F.when(F.col("is_gone"), size).otherwise(none).alias("bytes_removed"),
        ),
    )
    rows = items_of(histories).select("server", "queue", F.inline(events))
    figures = {name: F.sum(name) for name in ("items_added", "bytes_added", "items_removed", "bytes_removed")}
    table = aggregated(rows, scopes, figures, within=["start_ms"])
    return table.where((F.col("items_added") > 0) | (F.col("items_removed") > 0))


def depth(histories: DataFrame, interval_ms: int | None = None, scopes: Sequence[Scope] = ALL) -> DataFrame:
    """Return the number of items and bytes at the end of each interval in which they may have changed.

    Columns: `KEYS`, ``start_ms`` (start of the interval, in ms since 1970), ``items_least``, ``items_most``,
    ``bytes_least``, ``bytes_most``. The true value is between the two bounds, inclusive. The lower bound takes the
    earliest possible time of each removal, and the upper bound the latest. Open reads count until they are
    confirmed. Between two rows nothing changed. An item without an add time counts only in the upper bound, from the
    beginning.
    """
    interval_ms = checked_interval_ms(interval_ms if interval_ms is not None else interval_of(histories))
    size, has_add = F.col("data_bytes"), F.col("add_ms").isNotNull()

    def event(time_ms: str, least: int, most: int) -> Column:
        is_there = F.lit(True) if time_ms == "add_ms" else F.col(time_ms).isNotNull()
        least_by = F.when(has_add & is_there, F.lit(least)).otherwise(0).cast("long")
        most_by = F.when(is_there, F.lit(most)).otherwise(0).cast("long")
        return F.struct(
            start_of(time_ms, interval_ms).alias("start_ms"),
            *(least_by.alias("items_least"), most_by.alias("items_most")),
            *((least_by * size).alias("bytes_least"), (most_by * size).alias("bytes_most")),
        )

    events = F.array(event("add_ms", 1, 1), event("gone_after_ms", -1, 0), event("gone_before_ms", 0, -1))
    rows = items_of(histories).select("server", "queue", F.inline(events))
    names = ("items_least", "items_most", "bytes_least", "bytes_most")
    changes = aggregated(rows, scopes, {name: F.sum(name) for name in names}, within=["start_ms"])
    so_far = (
        Window.partitionBy(*KEYS)
        .orderBy(F.col("start_ms").asc_nulls_first())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    sums = changes.select(*KEYS, "start_ms", *(F.sum(name).over(so_far).alias(name) for name in names))
    return sums.where(F.col("start_ms").isNotNull())
