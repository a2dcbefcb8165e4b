"""Reports on the fate of items: waiting times, redeliveries, expiry and discards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kestrel.spark.reports.items import items_of
from kestrel.spark.reports.scopes import ALL, Scope, aggregated

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
