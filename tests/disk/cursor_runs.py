"""The runs of a cursor over a file."""

from __future__ import annotations

from typing import NamedTuple

from kestrel.disk.repair import ReadEnd
from kestrel.disk.run_cursor import RunCursor


class Runs(NamedTuple):
    """Where the records of a file begin and end, and where and how the file ends."""

    bounds: list[tuple[int, int]]
    end: ReadEnd

    @property
    def starts(self) -> list[int]:
        """The offsets of the records."""
        return [start for start, _ in self.bounds]

    @property
    def how(self) -> tuple[int, str | None, bool]:
        """The end in a form that can be compared."""
        return self.end.offset, self.end.problem, self.end.is_unfinished


def run_through(cursor: RunCursor, most: int = 1000) -> Runs:
    """Read all runs of at most `most` records."""
    bounds = []
    while cursor.next(most):
        assert 0 < len(cursor.starts) <= most
        bounds += [(cursor.data_start + start, cursor.data_start + end) for start, end in cursor.bounds()]
    return Runs(bounds, cursor.end)
