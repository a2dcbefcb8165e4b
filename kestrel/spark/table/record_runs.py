"""Records of a file that follow each other, as many as make a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np

from kestrel.spark.table.fields import Numbers

MOST_ROWS: Final = 1 << 15
"""In a batch. Its data is what one part of the file holds, or one item."""

_FEW: Final = 1 << 14
"""Runs of fewer are put together where their data is not wanted: a batch costs as much as a thousand rows."""


class RunCursor(Protocol):
    """The common interface of `JournalRunCursor` and `ScrollRunCursor`."""

    data: bytes
    data_start: int
    starts: list[int]
    run_end: int

    def next(self, most: int) -> bool:
        """The next run."""


class RecordRun(NamedTuple):
    """Some records."""

    data: bytes
    """Bytes that they stand in, without their items where these are not wanted."""
    starts: Numbers
    """Where each begins in it."""
    offsets: Numbers
    """Where each begins in the file."""
    sizes: Numbers
    """How long each is there."""


def iterate_runs(hops: RunCursor, shorten: Callable[[RecordRun], RecordRun] | None) -> Iterator[RecordRun]:
    """All runs. Where data is not wanted `shorten` leaves it out: short runs are put together then. Raises OSError."""
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
    """The same records, of which the bytes are the first so many; behind a shorter one there are others."""
    places = np.minimum(run.starts[:, None] + np.arange(size), len(run.data) - 1)
    data = np.frombuffer(run.data, np.uint8)[places].tobytes()
    return RecordRun(data, np.arange(0, len(data), size), run.offsets, run.sizes)


def with_headers(run: RecordRun, header_of: Callable[[bytes, int, int], bytes]) -> RecordRun:
    """The same records, of which the bytes are what `header_of` gives for a buffer, the place and the size."""
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
