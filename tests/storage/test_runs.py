"""A row of records kept in runs is a row."""

from __future__ import annotations

from collections import deque
from itertools import chain

import hypothesis.strategies as st
from hypothesis import given

from kestrel.storage.window import ChunkedDeque


def contents(row: ChunkedDeque) -> list[bytes]:
    return list(chain.from_iterable(row.first(len(row))))


SHORT = 4

COUNTS = st.integers(0, 10)
OPERATIONS = st.tuples(st.sampled_from(["append", "extend", "pop"]), COUNTS)


@given(st.lists(OPERATIONS))
def test_any_history_is_that_of_a_deque(operations: list[tuple[str, int]]) -> None:
    row, model, number = ChunkedDeque(SHORT), deque(), 0
    for operation, count in operations:
        new = [b"%d" % each for each in range(number, number + count)]
        if operation == "pop":
            for _ in range(min(count, len(model))):
                assert row.popleft() == model.popleft()
        else:
            number += count
            model += new
            if operation == "extend":
                row.extend(new)
            else:
                for record in new:
                    row.append(record)
        assert (len(row), bool(row), contents(row)) == (len(model), bool(model), list(model))


@given(COUNTS, st.integers(-1, 30))
def test_the_first_so_many_are_copied_and_stay(popped: int, count: int) -> None:
    row = ChunkedDeque(SHORT)
    for number in range(20):
        row.append(b"%d" % number)
    for _ in range(popped):
        row.popleft()
    expected = [b"%d" % number for number in range(popped, 20)]
    assert list(chain.from_iterable(row.first(count))) == expected[: max(0, count)]
    assert contents(row) == expected


def test_a_copy_is_not_changed_by_what_comes_later() -> None:
    row = ChunkedDeque(SHORT)
    row.extend([b"a", b"b"])
    copy = row.first(2)
    row.append(b"c")
    row.popleft()
    assert list(chain.from_iterable(copy)) == [b"a", b"b"]


def test_what_is_freed_is_gone_run_by_run() -> None:
    row = ChunkedDeque(SHORT)
    row.extend([b"a"] * SHORT)
    row.free()
    assert len(row) < SHORT
