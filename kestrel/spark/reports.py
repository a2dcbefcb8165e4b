"""Tables about item histories, which `kestrel.spark.item_histories.histories` makes.

Each function takes the DataFrame of histories and returns a DataFrame whose first columns are ``scope``, ``server`` and
``queue``. It has rows for each queue, for each server and for the whole fleet, or for the requested scopes. Spark does
all work; only the choice of an interval collects one row. Each table reads all histories, so persist them.
docs/spark.md describes the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kestrel.spark.report.report_data import checked_interval_ms, suitable_interval_ms

LARGEST_MS: Final = 2**44 - 1
"""Latest time that counts as known (the year 2527); 0 and earlier do not count either, as in a CONTINUE."""


def items_of(histories: DataFrame) -> DataFrame:
    """Return a row for each item, with these columns. All times are in ms since 1970.

    - ``server``, ``queue``, ``data_bytes``, ``state``, ``expired``, ``discarded``, ``position``: unchanged;
    - ``expiry_ms``: null for never;
    - ``add_ms``: null if the record has no time, or an invalid one;
    - ``is_left``, ``is_open``, ``is_gone``: the state at the end of the journals; open items are also left;
    - ``gone_after_ms``, ``gone_before_ms``: bounds of the removal. The lower bound is not before the add, and the upper
      bound not before the lower one. The upper bound is null if nothing was added since;
    - ``is_taken``: true if a client got the item; a flush or discard looks the same in a journal;
    - ``taken_after_ms``, ``taken_before_ms``: bounds of the first read; the lower bound is null if unknown;
    - ``returns``: the number of redeliveries: the aborts, or for a scroll, which does not record aborts, the errors.

    Placeholders in a pack file are not items and are left out.
    """
    rows = histories.where(~_holds_a_place()).withColumn("add_ms", _known("add_time"))
    is_left = F.col("state").isin("queued", "open")
    gone_after = F.when(~is_left, F.coalesce(_later(_known("removed_after"), F.col("add_ms")), F.col("add_ms")))
    is_taken = (F.coalesce("opens", F.lit(0)) > 0) | (~is_left & ~F.coalesce(F.col("expired") == "yes", F.lit(False)))
    is_taken = is_taken | (F.col("state") == "open")
    taken_after = F.when(is_taken, _later(_known("taken_after"), F.col("add_ms")))
    return (
        rows.withColumn("expiry_ms", F.unix_millis("expiry_time"))
        .withColumn("is_left", is_left)
        .withColumn("is_gone", ~is_left)
        .withColumn("is_open", F.col("state") == "open")
        .withColumn("gone_after_ms", gone_after)
        .withColumn("gone_before_ms", F.when(~is_left, _later(_known("removed_before"), F.col("gone_after_ms"))))
        .withColumn("is_taken", is_taken)
        .withColumn("taken_after_ms", taken_after)
        .withColumn("taken_before_ms", F.when(is_taken, _later(_known("taken_before"), F.col("taken_after_ms"))))
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
    """Return the time in ms, or null if it is invalid."""
    ms = F.unix_millis(name)
    return F.when(ms.between(1, LARGEST_MS), ms)


def _later(bound: Column, least: Column) -> Column:
    """Return the bound, but at least `least`, because a clock that was set back makes times run backwards."""
    return F.when(bound.isNotNull(), F.greatest(bound, least))


def _holds_a_place() -> Column:
    """Return a condition for the placeholders in a pack file, which stand in for removed items.

    A placeholder has no data, the add time 0, and a state other than queued or open.
    """
    is_empty = (F.col("data_bytes") == 0) & F.coalesce(F.unix_millis("add_time") == 0, F.lit(False))
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


PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

ACCURACY: Final = 10_000
"""Accuracy of percentile ranks: exact up to this number of items, else one part in this number."""

RETURNS: Final = {"never": (0, 0), "once": (1, 1), "twice": (2, 2), "three_to_five": (3, 5), "six_or_more": (6, None)}
"""Columns of the redelivery histogram, with the range of redeliveries that each counts."""


def waiting(histories: DataFrame, now_ms: int, scopes: Sequence[Scope] = ALL) -> DataFrame:
    """Return how long items waited from their add until their first read, in ms.

    Columns: `KEYS`, ``items`` (number of items read), ``items_unknown`` (further items with an unknown time), and
    bounds ``_least_ms`` and ``_most_ms`` for each of p50, p95, p99 and max. `now_ms` is when the journals were read,
    which is the upper bound for items read after the last add. Journals do not distinguish a flush or discard from a
    get. An item that had certainly expired at its removal counts as read only if it was opened.
    """
    rows = (
        items_of(histories)
        .where("is_taken")
        .withColumn("least_ms", F.col("taken_after_ms") - F.col("add_ms"))
        .withColumn("before_ms", F.coalesce("taken_before_ms", F.lit(now_ms)))
        .withColumn("most_ms", F.greatest(F.col("before_ms") - F.col("add_ms"), "least_ms"))
        .withColumn("most_ms", F.when(F.col("least_ms").isNotNull(), F.col("most_ms")))
    )
    ranks = [F.lit(rank) for rank in PERCENTILES.values()]
    figures = {
        "items": F.count("least_ms"),
        "items_unknown": F.count("*") - F.count("least_ms"),
        "least": F.percentile_approx("least_ms", F.array(*ranks), ACCURACY),
        "most": F.percentile_approx("most_ms", F.array(*ranks), ACCURACY),
        "max_least_ms": F.max("least_ms"),
        "max_most_ms": F.max("most_ms"),
    }
    table = aggregated(rows, scopes, figures)
    for place, name in enumerate(PERCENTILES):
        table = table.withColumn(f"{name}_least_ms", F.col("least")[place])
        table = table.withColumn(f"{name}_most_ms", F.col("most")[place])
    names = [f"{name}_{bound}_ms" for name in (*PERCENTILES, "max") for bound in ("least", "most")]
    return table.select("scope", "server", "queue", "items", "items_unknown", *names)


def redeliveries(histories: DataFrame, scopes: Sequence[Scope] = ALL) -> DataFrame:
    """Return how often items that were read were redelivered.

    Columns: `KEYS`, ``items`` (number of items read), ``redelivered`` (number of them that came back), ``share`` (their
    ratio, from 0 to 1), ``returns`` (redeliveries in total), ``most_returns`` (maximum for one item), and the histogram
    ``never``, ``once``, ``twice``, ``three_to_five``, ``six_or_more``. A restart of the server also redelivers open
    reads. A scroll records only errors, and not those of items that are done.
    """
    rows = items_of(histories).where("is_taken")
    returns = F.col("returns")
    figures: dict[str, Column] = {
        "items": F.count("*"),
        "redelivered": F.count_if(returns > 0),
        "share": F.count_if(returns > 0) / F.count("*"),
        "returns": F.sum(returns),
        "most_returns": F.max(returns),
    }
    for name, (least, most) in RETURNS.items():
        figures[name] = F.count_if(returns >= least if most is None else returns.between(least, most))
    return aggregated(rows, scopes, figures)


def expired_and_discarded(histories: DataFrame, now_ms: int, scopes: Sequence[Scope] = ALL) -> DataFrame:
    """Return how many items had expired at their removal, or may have been discarded by a full queue.

    Columns: `KEYS`, ``items_removed``, and of those ``expired_yes``, ``expired_maybe`` and ``bytes_expired_yes``;
    ``discarded_maybe``, and ``discarded_unknown`` (removed without an open read while the queue's ``maxItems`` is
    unknown); ``items_left``, and of those ``expired_left`` (expired by `now_ms`, so no client will get them). Only the
    expiry of the item itself is known, because journals do not record a queue's ``maxAge``.
    """
    gone, left = F.col("is_gone"), F.col("is_left")
    figures = {
        "items_removed": F.count_if(gone),
        "expired_yes": F.count_if(gone & (F.col("expired") == "yes")),
        "expired_maybe": F.count_if(gone & (F.col("expired") == "maybe")),
        "bytes_expired_yes": F.sum(F.when(gone & (F.col("expired") == "yes"), F.col("data_bytes")).otherwise(0)),
        "discarded_maybe": F.count_if(gone & (F.col("discarded") == "maybe")),
        "discarded_unknown": F.count_if((F.col("state") == "removed") & F.col("discarded").isNull()),
        "items_left": F.count_if(left),
        "expired_left": F.count_if(left & (F.col("expiry_ms") > 0) & (F.col("expiry_ms") < now_ms)),
    }
    return aggregated(items_of(histories), scopes, figures)


MOST_QUEUES: Final = 20

_SUMS: Final = (
    *("items_added", "bytes_added", "items_removed", "bytes_removed", "changes"),
    *("items_left", "bytes_left", "items_open", "returns"),
)


def summary(histories: DataFrame, now_ms: int, scopes: Sequence[Scope] = ALL) -> DataFrame:
    """Return a row of figures for each queue, each server and the fleet.

    Columns: `KEYS`; ``queues`` (number of queues that ever had an item); ``items_added``, ``items_removed``,
    ``items_left`` (at the end of the journals, including open reads) and of these ``items_open``; ``bytes_added``,
    ``bytes_removed`` and ``bytes_left`` (of data); ``changes`` (adds plus removals); ``returns`` (redeliveries);
    ``first_add_ms``, ``last_add_ms``; ``head_add_ms`` (when the head was added) and ``head_age_ms`` (its age at
    `now_ms`). For a server or the fleet this is the oldest head. Open reads count as the head, where a restart
    puts them. All times are in ms.
    """
    gone, left, size = F.col("is_gone"), F.col("is_left"), F.col("data_bytes")
    figures = {
        "items_added": F.count("*"),
        "bytes_added": F.sum(size),
        "items_removed": F.count_if(gone),
        "bytes_removed": F.sum(F.when(gone, size).otherwise(0)),
        "changes": F.count("*") + F.count_if(gone),
        "items_left": F.count_if(left),
        "bytes_left": F.sum(F.when(left, size).otherwise(0)),
        "items_open": F.count_if(F.col("is_open")),
        "returns": F.sum("returns"),
        "first_add_ms": F.min("add_ms"),
        "last_add_ms": F.max("add_ms"),
        "head_add_ms": F.min_by(F.when(left, F.col("add_ms")), F.when(left, F.col("position"))),
    }
    queues = aggregated(items_of(histories), [Scope.QUEUE], figures).drop("scope")
    of_queues: dict[str, Column] = {"queues": F.count("*")}
    of_queues |= {name: F.sum(name) for name in _SUMS}
    of_queues |= {"first_add_ms": F.min("first_add_ms"), "last_add_ms": F.max("last_add_ms")}
    of_queues |= {"head_add_ms": F.min("head_add_ms")}
    head_age = F.when(F.col("head_add_ms").isNotNull(), F.greatest(F.lit(now_ms) - F.col("head_add_ms"), F.lit(0)))
    return aggregated(queues, scopes, of_queues).withColumn("head_age_ms", head_age)


def busiest(summaries: DataFrame, most: int = MOST_QUEUES, scope: Scope = Scope.FLEET) -> DataFrame:
    """Return the `most` queues with the most adds and removals, of each server or of the fleet, from a `summary`.

    The result has a further column ``rank``, from 1. Ties are ordered by name.
    """
    return _ranked("busiest", summaries, most, scope)


def biggest(summaries: DataFrame, most: int = MOST_QUEUES, scope: Scope = Scope.FLEET) -> DataFrame:
    """Return the `most` queues with the most bytes left, with their ``rank``, as `busiest` does."""
    return _ranked("biggest", summaries, most, scope)


def oldest(summaries: DataFrame, most: int = MOST_QUEUES, scope: Scope = Scope.FLEET) -> DataFrame:
    """Return the `most` queues with the oldest head, with their ``rank``, as `busiest` does."""
    return _ranked("oldest", summaries, most, scope)


RANKINGS: Final = ("busiest", "biggest", "oldest")


def all_rankings(summaries: DataFrame, most: int = MOST_QUEUES) -> DataFrame:
    """Return the queues of all rankings with their ranks, in columns such as ``busiest_of_server``, null beyond `most`.

    This sorts once for each ranking, in a single job.
    """
    rows = summaries.where(F.col("scope") == Scope.QUEUE.value)
    names = [_rank_name(name, scope) for scope in (Scope.FLEET, Scope.SERVER) for name in RANKINGS]
    for scope in (Scope.FLEET, Scope.SERVER):
        for name in RANKINGS:
            has_rank, rank = _rank(name, scope)
            rows = rows.withColumn(_rank_name(name, scope), F.when(has_rank & (rank <= most), rank))
    return rows.where(F.coalesce(*names).isNotNull())


def _rank_name(name: str, scope: Scope) -> str:
    return f"{name}_of_{scope.value}"


def _ranked(name: str, summaries: DataFrame, most: int, scope: Scope) -> DataFrame:
    has_rank, rank = _rank(name, scope)
    rows = summaries.where((F.col("scope") == Scope.QUEUE.value) & has_rank)
    ranked = rows.withColumn("rank", rank).where(F.col("rank") <= most)
    return ranked.select("rank", *[column for column in ranked.columns if column != "rank"])


def _rank(name: str, scope: Scope) -> tuple[Column, Column]:
    """Return two columns for the ranking `name`: whether a queue is ranked, and its rank, which counts from 1.

    With `Scope.SERVER` each server has its own ranks.
    """
    orders = {
        "busiest": (F.lit(True), [F.col("changes").desc()]),
        "biggest": (F.col("items_left") > 0, [F.col("bytes_left").desc(), F.col("items_left").desc()]),
        "oldest": (F.col("head_add_ms").isNotNull(), [F.col("head_add_ms").asc_nulls_last()]),
    }
    has_rank, order = orders[name]
    keys = ["server"] if scope is Scope.SERVER else []
    window = Window.partitionBy(*keys).orderBy(has_rank.desc(), *order, F.col("server"), F.col("queue"))
    return has_rank, F.row_number().over(window)
