"""A `ChunkedDeque` behaves like a deque."""

from __future__ import annotations

from collections import deque
from itertools import chain

import hypothesis.strategies as st
from hypothesis import given

from kestrel.storage.window import ChunkedDeque

CHUNK_RECORDS = 4

COUNTS = st.integers(0, 10)
OPERATIONS = st.tuples(st.sampled_from(["append", "extend", "pop"]), COUNTS)


def records_in(chunks: ChunkedDeque) -> list[bytes]:
    return list(chain.from_iterable(chunks.first(len(chunks))))


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@given(st.lists(OPERATIONS), COUNTS, st.integers(-1, 30))
def test_any_history_equals_that_of_a_deque(operations: list[tuple[str, int]], first: int, most: int) -> None:
    chunks, model, number = ChunkedDeque(CHUNK_RECORDS), deque(), 0
    for operation, count in operations:
        new = numbered(number, number + count)
        if operation == "pop":
            for _ in range(min(count, len(model))):
                assert chunks.popleft() == model.popleft()
        else:
            number += count
            model += new
            if operation == "extend":
                chunks.extend(new)
            else:
                for record in new:
                    chunks.append(record)
        records = list(model)
        assert (len(chunks), bool(chunks), records_in(chunks)) == (len(records), bool(records), records)
        assert list(chain.from_iterable(chunks.first(most))) == records[: max(0, most)]
        assert chunks.part(first, most) == records[first : first + max(0, most)]


def test_later_changes_leave_a_copy_unchanged() -> None:
    chunks = ChunkedDeque(CHUNK_RECORDS)
    chunks.extend([b"a", b"b"])
    copy = chunks.first(2)
    chunks.append(b"c")
    chunks.popleft()
    assert list(chain.from_iterable(copy)) == [b"a", b"b"]


def test_free_removes_a_whole_chunk() -> None:
    chunks = ChunkedDeque(CHUNK_RECORDS)
    chunks.extend([b"a"] * CHUNK_RECORDS)
    chunks.free()
    assert len(chunks) < CHUNK_RECORDS
