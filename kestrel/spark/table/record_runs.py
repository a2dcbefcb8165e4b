"""Runs of consecutive records of a file, and vectorised extraction of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from kestrel.disk.repair import ReadEnd
from kestrel.disk.run_cursor import RunCursor

PART_BYTES: Final = 2 * 1024 * 1024
"""Number of bytes of a file that are read at a time and become a batch; a single item may be larger."""

SMALL_PART_BYTES: Final = 512 * 1024
"""Number of bytes read at a time without items, small enough for the processor's cache."""

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

Columns: TypeAlias = "Mapping[str, Callable[[], pa.Array]]"
"""Functions that make the columns of some rows, by name."""


def array_of(values: Numbers, is_there: Numbers | None = None) -> pa.Array:
    """Return the numbers as an Arrow array without a copy, with null where `is_there` is false.

    ``pa.array`` would do the same, but its first call imports pandas, which takes longer than reading a small file.
    """
    validity = None if is_there is None or is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def numbers_where(run: RecordRun, places: int | Numbers, is_there: Numbers, kind: str) -> Numbers:
    """Return the numbers at these places in the records, and 0 where `is_there` is false.

    `kind` is the NumPy type of the numbers, ``<i4`` or ``<i8``.
    """
    # The positions are not aligned, so the array has an overlapping element for each byte.
    count = max(0, len(run.data) - np.dtype(kind).itemsize + 1)
    everywhere: Numbers = np.ndarray((count,), kind, run.data, 0, (1,))
    if is_there.all():
        values: Numbers = everywhere[run.starts + places]
        return values
    values = np.zeros(len(run.starts), kind)
    values[is_there] = everywhere[(run.starts + places)[is_there]]
    return values


def field_of(run: RecordRun, places: int | Numbers, is_there: Numbers, kind: str) -> pa.Array:
    """Return a column of the numbers at these places in the records, and null where `is_there` is false."""
    if not is_there.any():
        return pa.nulls(len(is_there), pa.from_numpy_dtype(np.dtype(kind)))
    return array_of(numbers_where(run, places, is_there, kind), is_there)


def items_of(run: RecordRun, headers: Numbers, is_there: Numbers) -> pa.Array:
    """Return the bytes behind the header of each record, or null where `is_there` is false.

    The buffer is cut at the starts and ends of the items; every second piece is an item.
    """
    data, count = run.data, int(is_there.sum())
    cuts = np.empty(2 * count, np.int64)
    cuts[0::2] = (run.starts + headers)[is_there]
    cuts[1::2] = (run.starts + run.sizes)[is_there]
    first = int(cuts[0]) if count else 0  # keeps the offsets of the largest item in 32 bits
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(),
        max(0, 2 * count - 1),
        [None, pa.py_buffer((cuts - first).astype(np.int32)), pa.py_buffer(data)[first:]],
    )
    if count == len(is_there):
        return pieces.take(array_of(np.arange(0, 2 * count, 2)))
    return pieces.take(array_of(2 * (np.cumsum(is_there) - 1), is_there))


MOST_ROWS: Final = 1 << 15
"""Maximum of rows in a batch. Its data is one part of the file, or one item."""

_FEW: Final = 1 << 14
"""Shorter runs are joined if data is not wanted, because a batch costs as much as a thousand rows."""


class RecordRun(NamedTuple):
    """Consecutive records of a file."""

    data: bytes
    """Buffer with the records; without their items if these are not wanted."""
    starts: Numbers
    """Start of each record in the buffer."""
    offsets: Numbers
    sizes: Numbers


class RecordRows:
    """The rows of the records that a cursor reads. Read `end` after the iteration.

    `columns` makes the columns of a run. If `shorten` is given, it removes the items of a run, and short runs are
    joined.
    """

    def __init__(
        self,
        cursor: RunCursor,
        columns: Callable[[RecordRun], Columns],
        shorten: Callable[[RecordRun], RecordRun] | None,
    ) -> None:
        self._cursor = cursor
        self._columns = columns
        self._shorten = shorten

    @property
    def end(self) -> ReadEnd:
        """End of the good part of the file, with its problem."""
        return self._cursor.end

    def __iter__(self) -> Iterator[tuple[int, Columns]]:
        """Yield the number of rows of each batch, and their columns. Raises OSError."""
        for run in self._runs():
            yield len(run.starts), self._columns(run)

    def _runs(self) -> Iterator[RecordRun]:
        cursor, shorten = self._cursor, self._shorten
        waiting: list[RecordRun] = []
        rows = 0
        while cursor.next(MOST_ROWS):
            starts: Numbers = np.array(cursor.starts, np.int64)
            sizes = np.append(starts[1:], cursor.run_end) - starts
            run = RecordRun(cursor.data, starts, cursor.data_start + starts, sizes)
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


def part_bytes_of(*, has_data: bool) -> int:
    """Return the number of bytes to read at a time."""
    return PART_BYTES if has_data else SMALL_PART_BYTES


def columns_of(run: RecordRun, opcodes: Numbers, kinds: Numbers, names: pa.Array) -> Columns:
    """Return the columns that all records have. `kinds` has the place of each record's name in `names`."""
    return {
        "offset": lambda: array_of(run.offsets),
        "bytes": lambda: array_of(run.sizes),
        "opcode": lambda: array_of(opcodes.astype(np.int32)),
        "op": lambda: names.take(array_of(kinds)),
    }


def texts_of(texts: Sequence[str]) -> pa.Array:
    """Return the texts as an Arrow array without importing pandas."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def constant_of(value: str | int | None, rows: int) -> pa.Array:
    """Return a column with the same value in all rows."""
    if value is None:
        return pa.nulls(rows)
    if isinstance(value, int):
        return array_of(np.full(rows, value))
    return texts_of([value]).take(array_of(np.zeros(rows, np.int64)))


def with_prefixes(run: RecordRun, size: int) -> RecordRun:
    """Return the run with only the first `size` bytes of each record; a shorter record is padded with other bytes."""
    everywhere: Numbers = np.ndarray((max(0, len(run.data) - size + 1),), f"V{size}", run.data, 0, (1,))
    whole = int(np.searchsorted(run.starts, len(everywhere)))  # the others end within `size` bytes
    short = (run.data[start : start + size].ljust(size, b"\0") for start in run.starts[whole:].tolist())
    data = everywhere[run.starts[:whole]].tobytes() + b"".join(short)
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
