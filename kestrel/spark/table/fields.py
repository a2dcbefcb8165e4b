"""Fields of many records at a time, out of the bytes that these stand in."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

PART_BYTES: Final = 2 * 1024 * 1024
"""So much of a file is read at a time, and becomes a batch. One item may be more."""

SMALL_PART_BYTES: Final = 512 * 1024
"""So much where items are not wanted: it stays in the processor's cache."""

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def numbers_at(data: bytes, places: Numbers, kind: str) -> Numbers:
    """The little-endian numbers of that kind (``<i4``, ``<i8``) that begin at these places."""
    # They stand at any byte, so that such numbers are looked for at each of them.
    count = max(0, len(data) - np.dtype(kind).itemsize + 1)
    everywhere: Numbers = np.ndarray((count,), kind, data, 0, (1,))
    return everywhere[places]


def numbers_where(data: bytes, places: Numbers, is_there: Numbers, kind: str) -> Numbers:
    """The numbers at these places, and 0 where there is none."""
    values = np.zeros(len(places), kind)
    values[is_there] = numbers_at(data, places[is_there], kind)
    return values


def names_of(names: tuple[str, ...], places: Numbers) -> pa.Array:
    """The name at each place."""
    # Not an array from the beginning: the first one that pyarrow makes brings pandas, which who plans can do without.
    return pa.array(names, pa.string()).take(pa.array(places))


def items_of(data: bytes, begins: Numbers, ends: Numbers, is_there: Numbers) -> pa.Array:
    """The bytes from each place to its end; null where there are none.

    The bytes are cut where items begin and end; each second piece of that is one.
    """
    count = int(is_there.sum())
    cuts = np.empty(2 * count, np.int64)
    cuts[0::2] = begins[is_there]
    cuts[1::2] = ends[is_there]
    first = int(cuts[0]) if count else 0  # the largest item ends behind what an offset can say, but for that
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(),
        max(0, 2 * count - 1),
        [None, pa.py_buffer((cuts - first).astype(np.int32)), pa.py_buffer(data)[first:]],
    )
    if count == len(is_there):
        return pieces.take(pa.array(np.arange(0, 2 * count, 2)))
    return pieces.take(pa.array(2 * (np.cumsum(is_there) - 1), mask=~is_there))
