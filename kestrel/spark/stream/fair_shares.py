"""How many rows a batch may have, and what of it each server gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

MOST_ROWS: Final = (1 << 31) - 1
"""No request can ask for more."""


def parse_max_rows(limit: ReadLimit, default: int) -> int:
    """How many rows that limit allows."""
    if isinstance(limit, ReadAllAvailable):
        return MOST_ROWS
    return min(limit.max_rows if isinstance(limit, ReadMaxRows) else default, MOST_ROWS)


class FairShares:
    """An amount that is shared out among so many in turn: what one has no use for is left to those after it."""

    def __init__(self, amount: int, parties: int) -> None:
        self._left = amount
        self._parties = parties
        self._share = 0

    def next(self) -> int:
        """How much the next one may have."""
        self._share = -(-self._left // self._parties)
        self._parties -= 1
        return self._share

    def used(self, amount: int) -> None:
        """It has taken so much; more than its share counts as that."""
        self._left -= min(amount, self._share)


class RoundRobin:
    """Who is first: each time the next one."""

    def __init__(self) -> None:
        self._first = 0

    def of(self, parties: Sequence[str]) -> Sequence[str]:
        """All of them, who may be others than the last time."""
        self._first = (self._first + 1) % (len(parties) or 1)
        return [*parties[self._first :], *parties[: self._first]]
