"""Item histories prepared for the reports, and their aggregation by queue, by server and for the whole fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

LARGEST_MS: Final = 2**44 - 1
"""Latest time that counts as known (the year 2527); 0 and earlier do not count either, as in a CONTINUE."""


def items_of(histories: DataFrame) -> DataFrame:
    """Return a row for each item, with these columns. All times are in ms since 1970.

    - ``server``, ``queue``, ``data_bytes``, ``expiry_ms``, ``state``, ``expired``, ``discarded``, ``position``:
      unchanged;
    - ``add_ms``: null if the record has no time, or an invalid one;
    - ``is_left``, ``is_open``, ``is_gone``: the state at the end of the journals; open items are also left;
    - ``gone_after_ms``, ``gone_before_ms``: bounds of the removal. The lower bound is not before the add, and the upper
      bound not before the lower one. The upper bound is null if nothing was added since;
    - ``is_taken``: true if a client got the item; a flush or discard looks the same in a journal;
    - ``taken_after_ms``, ``taken_before_ms``: bounds of the first read; the lower bound is null if unknown;
    - ``returns``: the number of redeliveries: the aborts, or for a scroll, which does not record aborts, the errors.

    Placeholders in a pack file are not items and are left out.
    """
    rows = histories.where(~_holds_a_place()).withColumn("add_ms", _known("add_ms"))
    is_left = F.col("state").isin("queued", "open")
    gone_after = F.when(~is_left, F.coalesce(_later(_known("removed_after_ms"), F.col("add_ms")), F.col("add_ms")))
    is_taken = (F.coalesce("opens", F.lit(0)) > 0) | (~is_left & ~F.coalesce(F.col("expired") == "yes", F.lit(False)))
    is_taken = is_taken | (F.col("state") == "open")
    taken_after = F.when(is_taken, _later(_known("taken_after_ms"), F.col("add_ms")))
    return (
        rows.withColumn("is_left", is_left)
        .withColumn("is_gone", ~is_left)
        .withColumn("is_open", F.col("state") == "open")
        .withColumn("gone_after_ms", gone_after)
        .withColumn("gone_before_ms", F.when(~is_left, _later(_known("removed_before_ms"), F.col("gone_after_ms"))))
        .withColumn("is_taken", is_taken)
        .withColumn("taken_after_ms", taken_after)
        .withColumn("taken_before_ms", F.when(is_taken, _later(_known("taken_before_ms"), F.col("taken_after_ms"))))
        .withColumn("returns", F.coalesce("aborts", "errors"))
        .select(*_COLUMNS)
    )


_COLUMNS: Final = (
    *("server", "queue", "data_bytes", "expiry_ms", "state", "expired", "discarded", "position", "add_ms"),
    *("is_left", "is_open", "is_gone", "gone_after_ms", "gone_before_ms"),
    *("is_taken", "taken_after_ms", "taken_before_ms", "returns"),
)


def start_of(time_ms: str, interval_ms: int) -> Column:
    """Return the start of the interval that contains a column's time. Intervals begin at multiples of their length."""
    return F.col(time_ms) - F.col(time_ms) % interval_ms


def _known(name: str) -> Column:
    """Return the time, or null if it is invalid."""
    return F.when(F.col(name).between(1, LARGEST_MS), F.col(name))


def _later(bound: Column, least: Column) -> Column:
    """Return the bound, but at least `least`, because a clock that was set back makes times run backwards."""
    return F.when(bound.isNotNull(), F.greatest(bound, least))


def _holds_a_place() -> Column:
    """Return a condition for the placeholders in a pack file, which stand in for removed items.

    A placeholder has no data, the add time 0, and a state other than queued or open.
    """
    is_empty = (F.col("data_bytes") == 0) & F.coalesce(F.col("add_ms") == 0, F.lit(False))
    return is_empty & ~F.col("state").isin("queued", "open")


class Scope(Enum):
    """The scope of a row, as named in the column ``scope``."""

    QUEUE = "queue"
    SERVER = "server"
    FLEET = "fleet"

    @property
    def keys(self) -> list[str]:
        """Columns that identify a row of this scope; other key columns are null."""
        return {Scope.QUEUE: ["server", "queue"], Scope.SERVER: ["server"], Scope.FLEET: []}[self]


ALL: Final = tuple(Scope)
"""All scopes. Rows of different scopes must not be added up."""

KEYS: Final = ("scope", "server", "queue")
"""First columns of each report."""


def aggregated(
    rows: DataFrame, scopes: Sequence[Scope], figures: Mapping[str, Column], *, within: Sequence[str] = ()
) -> DataFrame:
    """Return the figures of each queue, each server and the fleet, as requested, in one pass over the rows.

    `within` has further columns to group by. Without rows the result is empty, also for the fleet.
    """
    sets = [[*scope.keys, *within] for scope in dict.fromkeys(scopes)]
    grouping = rows.groupingSets(sets, "server", "queue", *within)
    scope = (
        F.when(F.grouping("queue") == 0, Scope.QUEUE.value)
        .when(F.grouping("server") == 0, Scope.SERVER.value)
        .otherwise(Scope.FLEET.value)
    )
    columns = [figure.alias(name) for name, figure in figures.items()]
    return grouping.agg(scope.alias("scope"), *columns).select(*KEYS, *within, *figures)
