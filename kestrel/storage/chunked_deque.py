"""A queue of records in chunks, which is cheap for the garbage collector."""

from __future__ import annotations

import gc
from collections import deque
from itertools import chain
from typing import Final

CHUNK_RECORDS: Final = 1024


class ChunkedDeque:
    """A first in, first out queue of records.

    A full chunk is a tuple. The garbage collector stops tracking a tuple once it has seen that it holds only bytes.
    With two million records in one deque, each full collection would take 40 ms. For the same reason `first` copies in
    chunks, and `free` frees chunk by chunk.
    """

    __slots__ = ("_chunk_records", "_chunks", "_head", "_tail")

    def __init__(self, chunk: int = CHUNK_RECORDS) -> None:
        self._chunk_records = chunk
        self._head: list[bytes] = []
        """The remaining records of the first chunk, in reverse order."""
        self._chunks: deque[tuple[bytes, ...]] = deque()
        self._tail: list[bytes] = []

    def append(self, record: bytes) -> None:
        tail = self._tail
        tail.append(record)
        if len(tail) >= self._chunk_records:
            self._chunks.append(tuple(tail))
            self._tail = []

    def extend(self, records: list[bytes]) -> None:
        """Append all records. If they fill the last chunk, it becomes one chunk, whatever its length."""
        self._tail += records
        if len(self._tail) >= self._chunk_records:
            self._chunks.append(tuple(self._tail))
            self._tail = []
            # The collector looks at this chunk now and stops tracking it. Later it would look at hundreds at once.
            gc.collect(0)

    def popleft(self) -> bytes | None:
        """Remove and return the first record, or return None if there is none."""
        if self._head:
            return self._head.pop()
        if self._chunks:
            self._head = list(self._chunks.popleft())
        elif len(self._tail) <= 1:
            return self._tail.pop() if self._tail else None
        else:
            self._head, self._tail = self._tail, []
        self._head.reverse()
        return self._head.pop()

    def first(self, count: int) -> list[tuple[bytes, ...]]:
        """Return the first `count` records, or all if there are fewer, in chunks."""
        chunks: list[tuple[bytes, ...]] = []
        for chunk in chain((tuple(reversed(self._head)),), self._chunks, (tuple(self._tail),)):
            if count <= 0:
                break
            chunks.append(chunk[:count])
            count -= len(chunk)
        return chunks

    def free(self) -> None:
        """Free the full chunks one by one. In a thread, this lets other threads run between two chunks."""
        while self._chunks:
            self._chunks.pop()

    def __len__(self) -> int:
        """Return the number of records. This takes time for each chunk."""
        return len(self._head) + sum(map(len, self._chunks)) + len(self._tail)

    def __bool__(self) -> bool:
        return bool(self._head or self._chunks or self._tail)
