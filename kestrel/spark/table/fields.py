"""Vectorised extraction of fields from a buffer with many records."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

PART_BYTES: Final = 2 * 1024 * 1024
"""Number of bytes of a file that are read at a time and become a batch; a single item may be larger."""

SMALL_PART_BYTES: Final = 512 * 1024
"""Number of bytes read at a time without items, small enough for the processor's cache."""

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def numbers_at(data: bytes, places: Numbers, kind: str) -> Numbers:
    """Return the little-endian numbers of that kind (``<i4``, ``<i8``) at byte positions in `data`."""
    # The positions are not aligned, so the array has an overlapping element for each byte.
    count = max(0, len(data) - np.dtype(kind).itemsize + 1)
    everywhere: Numbers = np.ndarray((count,), kind, data, 0, (1,))
    return everywhere[places]


def numbers_where(data: bytes, places: Numbers, is_there: Numbers, kind: str) -> Numbers:
    """Return the numbers at these positions, and 0 where `is_there` is false."""
    values = np.zeros(len(places), kind)
    values[is_there] = numbers_at(data, places[is_there], kind)
    return values


def names_of(names: tuple[str, ...], places: Numbers) -> pa.Array:
    """Return the name at each index."""
    # Made here, not at import: the first array of pyarrow imports pandas, which planning does not need.
    return pa.array(names, pa.string()).take(pa.array(places))


def items_of(data: bytes, begins: Numbers, ends: Numbers, is_there: Numbers) -> pa.Array:
    """Return the bytes of each range, or null where `is_there` is false.

    The buffer is cut at the starts and ends of the items; every second piece is an item.
    """
    count = int(is_there.sum())
    cuts = np.empty(2 * count, np.int64)
    cuts[0::2] = begins[is_there]
    cuts[1::2] = ends[is_there]
    first = int(cuts[0]) if count else 0  # keeps the offsets of the largest item in 32 bits
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(),
        max(0, 2 * count - 1),
        [None, pa.py_buffer((cuts - first).astype(np.int32)), pa.py_buffer(data)[first:]],
    )
    if count == len(is_there):
        return pieces.take(pa.array(np.arange(0, 2 * count, 2)))
    return pieces.take(pa.array(2 * (np.cumsum(is_there) - 1), mask=~is_there))
