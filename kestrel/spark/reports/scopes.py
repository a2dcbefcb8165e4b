"""The scope of a report's rows: a queue, a server, or all servers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


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
