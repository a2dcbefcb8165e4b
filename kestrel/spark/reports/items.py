"""Item histories as the reports look at them: what is known of an item's times, and what nobody can know."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

LARGEST_MS: Final = 2**44 - 1
"""A later time (the year 2527) is none, as in a CONTINUE; nor is 0 or one before it."""


def items_of(histories: DataFrame) -> DataFrame:
    """A row for each item, with these columns. All times are in ms since 1970.

    - ``server``, ``queue``, ``data_bytes``, ``expiry_ms``, ``state``, ``expired``, ``discarded``, ``position``: as they
      are;
    - ``add_ms``: null where the record says none, or one that is no time;
    - ``is_left``, ``is_open``, ``is_gone``: where it is at the end of the journals; one that is open is left as well;
    - ``gone_after_ms``, ``gone_before_ms``: it was gone for good then or later, then or earlier; the first one is not
      before its add, nor the second one before the first. The second one is null if nothing was added since;
    - ``is_taken``: whether somebody got it, as far as journals say: a flush looks the same, and so does a discard;
    - ``taken_after_ms``, ``taken_before_ms``: the same of the first time that it was taken; the first one is null
      where nobody knows;
    - ``returns``: how often it came back: its aborts, or of a scroll, whose files do not count those, its errors.

    What holds the place of an item in a pack is no item, and left out.
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
    """When the interval began in which that column's time is. Intervals begin at multiples of their length."""
    return F.col(time_ms) - F.col(time_ms) % interval_ms


def _known(name: str) -> Column:
    """The time, or null."""
    return F.when(F.col(name).between(1, LARGEST_MS), F.col(name))


def _later(bound: Column, least: Column) -> Column:
    """The bound, and not before the other one, if there is one: a clock that was put back has times that run back."""
    return F.when(bound.isNotNull(), F.greatest(bound, least))


def _holds_a_place() -> Column:
    """An empty one, added in 1970, that is gone."""
    is_empty = (F.col("data_bytes") == 0) & F.coalesce(F.col("add_ms") == 0, F.lit(False))
    return is_empty & ~F.col("state").isin("queued", "open")
