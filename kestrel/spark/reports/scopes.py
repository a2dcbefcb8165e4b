"""What the rows of a report are about: a queue, a server, or all servers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


class Scope(Enum):
    """What a row is about. The names are those of the column ``scope``."""

    QUEUE = "queue"
    SERVER = "server"
    FLEET = "fleet"

    @property
    def keys(self) -> list[str]:
        """The columns that tell its rows apart; the others of them are null."""
        return {Scope.QUEUE: ["server", "queue"], Scope.SERVER: ["server"], Scope.FLEET: []}[self]


ALL: Final = tuple(Scope)
"""Each of them: a report has rows of all three, which nobody should add up."""

KEYS: Final = ("scope", "server", "queue")
"""The first columns of each report."""


def aggregated(
    rows: DataFrame, scopes: Sequence[Scope], figures: Mapping[str, Column], *, within: Sequence[str] = ()
) -> DataFrame:
    """The figures of each queue, of each server and of the fleet, whichever are asked for, in one pass over the rows.

    `within` are further columns to group by. Where there are no rows there are no figures, not even of the fleet.
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
