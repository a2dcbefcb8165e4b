"""Division of a batch's rows and bytes among the servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

MOST_ROWS: Final = (1 << 31) - 1
"""Maximum that a request can ask for."""


def parse_max_rows(limit: ReadLimit, default: int) -> int:
    """Return the number of rows that a limit of Spark allows, or `default` if it does not limit rows."""
    if isinstance(limit, ReadAllAvailable):
        return MOST_ROWS
    return min(limit.max_rows if isinstance(limit, ReadMaxRows) else default, MOST_ROWS)


class FairShares:
    """An amount that several parties share in turn. An unused part of a share is left to the following parties."""

    def __init__(self, amount: int, parties: int) -> None:
        self._left = amount
        self._parties = parties
        self._share = 0

    def next(self) -> int:
        """Return the share of the next party."""
        self._share = -(-self._left // self._parties)
        self._parties -= 1
        return self._share

    def used(self, amount: int) -> None:
        """Record how much of its share the party used; more counts as the whole share."""
        self._left -= min(amount, self._share)


class RoundRobin:
    """A round-robin order of parties: each call begins with the next party."""

    def __init__(self) -> None:
        self._first = 0

    def of(self, parties: Sequence[str]) -> Sequence[str]:
        """Return all parties, which may differ from call to call, starting with the next one."""
        self._first = (self._first + 1) % (len(parties) or 1)
        return [*parties[self._first :], *parties[: self._first]]
