"""The cursor finds the records that the format defines, with and without their data."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk.reader import PART_BYTES
from kestrel.disk.repair import ReadEnd
from kestrel.journal.cursor import JournalCursor
from kestrel.journal.opcodes import STATE_DUMP_RECORD
from tests.journal import reference
from tests.journal.handwritten import (
    REMOVE,
    BytesReader,
    add,
    add_xid,
    addx,
    continue_,
    open_,
    save_xid,
    state_dump,
    unremove,
)

RECORDS = st.sampled_from(
    [add(b"a"), addx(b"bc"), open_(1), save_xid(2), unremove(1), add_xid(3, b""), continue_(1, b"d"), state_dump(1)]
)
CONTENTS = st.lists(RECORDS | st.binary(max_size=12), max_size=8).map(b"".join)


class Run(NamedTuple):
    """The offsets of records, where and how the file ended, and whether the last record is a STATE_DUMP."""

    offsets: list[int]
    end: ReadEnd
    is_closed: bool


def run_through(
    contents: bytes,
    has_data: bool,
    most: int = 1000,
    start: int = 0,
    stop: int | None = None,
    part_bytes: int = PART_BYTES,
) -> Run:
    stop = len(contents) if stop is None else stop
    cursor = JournalCursor(BytesReader(contents), start, stop, has_data=has_data, part_bytes=part_bytes)
    offsets = []
    while cursor.next(most):
        assert 0 < len(cursor.starts) <= most
        offsets += [cursor.data_start + position for position in cursor.starts]
        assert cursor.end.offset == cursor.data_start + cursor.run_end
        assert cursor.dump_at in (-1, cursor.starts[-1])
    return Run(offsets, cursor.end, cursor.dump_at >= 0)


@given(CONTENTS, st.booleans(), st.integers(1, 4))
def test_any_bytes_give_the_records_of_the_format(contents: bytes, has_data: bool, most: int) -> None:
    reading, cursor = reference.read(contents), run_through(contents, has_data, most)
    assert cursor.offsets == [record.offset for record in reading.records]
    assert cursor.end.offset == reading.end
    assert (cursor.end.problem is None) == (reading.problem == "")
    assert cursor.end.is_unfinished == (reading.problem == "unfinished")
    assert cursor.is_closed == reading.is_closed


@given(CONTENTS, st.integers(1, 40))
def test_decoded_records_are_those_of_the_format(contents: bytes, part_bytes: int) -> None:
    reading, cursor = reference.read(contents), JournalCursor(BytesReader(contents, part_bytes))
    assert [(offset, record.opcode) for offset, record in cursor.records()] == [
        (record.offset, record.opcode) for record in reading.records
    ]
    assert (cursor.end.offset, cursor.end.is_closed) == (reading.end, reading.is_closed)
    assert cursor.end.records == len(reading.records)


@pytest.mark.parametrize("part_bytes", [1, 2, 7, 30])
def test_error_counts_do_not_depend_on_part_borders(part_bytes: int) -> None:
    contents = addx(b"a") + open_(1) + save_xid(3) + unremove(1) + open_(2) + unremove(2)
    cursor = JournalCursor(BytesReader(contents), part_bytes=part_bytes)
    assert [record.errors for _, record in cursor.records()] == [None, None, None, 3, None, None]


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("part_bytes", [1, 2, 7, 30])
def test_records_do_not_depend_on_part_borders(part_bytes: int, has_data: bool) -> None:
    contents = addx(b"a") + open_(1) + save_xid(3) + unremove(1) + add(b"bcd") + addx(b"x" * 50) + addx(b"cut")[:-1]
    whole = run_through(contents, has_data)
    cursor = run_through(contents, has_data, part_bytes=part_bytes)
    assert cursor.offsets == whole.offsets
    assert (cursor.end.is_unfinished, cursor.end.offset) == (True, len(contents) - len(addx(b"cut")) + 1)


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("part_bytes", range(len(REMOVE) + 1, len(REMOVE) + STATE_DUMP_RECORD.size + 2))
def test_state_dump_at_part_border_has_all_fields(part_bytes: int, has_data: bool) -> None:
    contents = REMOVE + state_dump(5, add_xid(1, b"x"))
    cursor = JournalCursor(BytesReader(contents), 0, len(contents), has_data=has_data, part_bytes=part_bytes)
    while cursor.next(1000):
        pass
    assert STATE_DUMP_RECORD.unpack_from(cursor.data, cursor.dump_at)[1:] == (5, 1)


@given(CONTENTS, st.booleans(), st.data())
def test_two_parts_have_the_records_of_the_whole(contents: bytes, has_data: bool, data: st.DataObject) -> None:
    whole = run_through(contents, has_data)
    begins = data.draw(st.sampled_from([*whole.offsets, whole.end.offset]))
    first = run_through(contents, has_data, stop=begins)
    second = run_through(contents, has_data, start=begins)
    assert first.offsets + second.offsets == whole.offsets
    assert first.end.problem is None
    assert (second.end.offset, second.end.problem) == (whole.end.offset, whole.end.problem)


def test_data_of_large_items_is_not_read_if_unwanted() -> None:
    contents = addx(b"x" * 3_000_000) * 10
    reader = BytesReader(contents)
    cursor = JournalCursor(reader, 0, len(contents), has_data=False)
    while cursor.next(1000):
        pass
    assert cursor.end.offset == len(contents)
    assert reader.read_bytes < 2_000_000


def test_wanted_data_is_available_for_items_of_any_size() -> None:
    contents = addx(b"a") + addx(b"x" * 3_000_000) + addx(b"b")
    cursor = JournalCursor(BytesReader(contents), 0, len(contents), has_data=True)
    items = []
    while cursor.next(1000):
        ends = [*cursor.starts[1:], cursor.run_end]
        items += [cursor.data[start + 21 : end] for start, end in zip(cursor.starts, ends, strict=True)]
    assert items == [b"a", b"x" * 3_000_000, b"b"]
