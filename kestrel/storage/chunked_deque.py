"""A row of records, kept in runs: what goes through all of them goes through few objects."""

from __future__ import annotations

import gc
from collections import deque
from itertools import chain
from typing import Final

CHUNK_RECORDS: Final = 1024


class ChunkedDeque:
    """Records, first in, first out.

    A full run is a tuple, which the garbage collector leaves out once it has seen that only bytes are in it: for a
    deque of two million records each full collection would take 40 ms. For the same reason a copy of the row is one of
    its runs, and it is freed run by run.
    """

    __slots__ = ("_chunk_records", "_chunks", "_head", "_tail")

    def __init__(self, chunk: int = CHUNK_RECORDS) -> None:
        self._chunk_records = chunk
        self._head: list[bytes] = []
        """What is left of the first run, backwards."""
        self._chunks: deque[tuple[bytes, ...]] = deque()
        self._tail: list[bytes] = []

    def append(self, record: bytes) -> None:
        """One more."""
        tail = self._tail
        tail.append(record)
        if len(tail) >= self._chunk_records:
            self._chunks.append(tuple(tail))
            self._tail = []

    def extend(self, records: list[bytes]) -> None:
        """Some more, at once."""
        self._tail += records
        if len(self._tail) >= self._chunk_records:
            self._chunks.append(tuple(self._tail))
            self._tail = []
            # So that it looks at this run now and leaves it out, rather than at hundreds of them at some later time.
            gc.collect(0)

    def popleft(self) -> bytes | None:
        """Remove and return the first; None when there is none."""
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
        """The first so many, or all, in runs."""
        chunks: list[tuple[bytes, ...]] = []
        for chunk in chain((tuple(reversed(self._head)),), self._chunks, (tuple(self._tail),)):
            if count <= 0:
                break
            chunks.append(chunk[:count])
            count -= len(chunk)
        return chunks

    def free(self) -> None:
        """Let go of all of them in many steps: for a thread, where each step lets others go on."""
        while self._chunks:
            self._chunks.pop()

    def __len__(self) -> int:
        """How many there are, counted run by run."""
        return len(self._head) + sum(map(len, self._chunks)) + len(self._tail)

    def __bool__(self) -> bool:
        return bool(self._head or self._chunks or self._tail)
