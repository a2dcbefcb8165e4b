"""Figures of each queue, and rankings of the biggest, oldest and busiest queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kestrel.spark.reports.items import items_of
from kestrel.spark.reports.scopes import ALL, Scope, aggregated

MOST_QUEUES: Final = 20
"""Default number of queues in a ranking."""

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
