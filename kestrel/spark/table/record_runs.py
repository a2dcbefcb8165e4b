"""Runs of consecutive records of a file, of the size of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np

from kestrel.spark.table.fields import Numbers

MOST_ROWS: Final = 1 << 15
"""Maximum of rows in a batch. Its data is one part of the file, or one item."""

_FEW: Final = 1 << 14
"""Shorter runs are joined if data is not wanted, because a batch costs as much as a thousand rows."""


class RunCursor(Protocol):
    """The common interface of `JournalRunCursor` and `ScrollRunCursor`."""

    data: bytes
    data_start: int
    starts: list[int]
    run_end: int

    def next(self, most: int) -> bool:
        """Read the next run of at most `most` records; return False at the end."""


class RecordRun(NamedTuple):
    """Consecutive records of a file."""

    data: bytes
    """Buffer with the records; without their items if these are not wanted."""
    starts: Numbers
    """Start of each record in the buffer."""
    offsets: Numbers
    """Start of each record in the file."""
    sizes: Numbers
    """Length of each record in the file."""


def iterate_runs(hops: RunCursor, shorten: Callable[[RecordRun], RecordRun] | None) -> Iterator[RecordRun]:
    """Yield all runs. If `shorten` is given, it removes the items, and short runs are joined. Raises OSError."""
    waiting: list[RecordRun] = []
    rows = 0
    while hops.next(MOST_ROWS):
        starts: Numbers = np.array(hops.starts, np.int64)
        sizes = np.append(starts[1:], hops.run_end) - starts
        run = RecordRun(hops.data, starts, hops.data_start + starts, sizes)
        if shorten is None or len(starts) >= _FEW:
            yield from _join_runs(waiting)
            yield run
            waiting, rows = [], 0
            continue
        waiting.append(shorten(run))
        rows += len(starts)
        if rows + _FEW > MOST_ROWS:
            yield from _join_runs(waiting)
            waiting, rows = [], 0
    yield from _join_runs(waiting)


def with_prefixes(run: RecordRun, size: int) -> RecordRun:
    """Return the run with only the first `size` bytes of each record; a shorter record is padded with other bytes."""
    places = np.minimum(run.starts[:, None] + np.arange(size), len(run.data) - 1)
    data = np.frombuffer(run.data, np.uint8)[places].tobytes()
    return RecordRun(data, np.arange(0, len(data), size), run.offsets, run.sizes)


def with_headers(run: RecordRun, header_of: Callable[[bytes, int, int], bytes]) -> RecordRun:
    """Return the run with the bytes that `header_of` returns for a buffer, a start and a size."""
    places = zip(run.starts.tolist(), run.sizes.tolist(), strict=True)
    headers = [header_of(run.data, start, size) for start, size in places]
    ends = np.cumsum([len(header) for header in headers])
    return RecordRun(b"".join(headers), np.append(0, ends[:-1]), run.offsets, run.sizes)


def _join_runs(runs: list[RecordRun]) -> Iterator[RecordRun]:
    if len(runs) <= 1:
        yield from runs
        return
    moved, begins = [], 0
    for run in runs:
        moved.append(run.starts + begins)
        begins += len(run.data)
    yield RecordRun(
        b"".join(run.data for run in runs),
        np.concatenate(moved),
        np.concatenate([run.offsets for run in runs]),
        np.concatenate([run.sizes for run in runs]),
    )
