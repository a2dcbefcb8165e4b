"""The cursor finds the records that the format defines, with and without their data."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.journal.cursor import JournalCursor
from kestrel.journal.opcodes import STATE_DUMP_RECORD
from tests.disk.cursor_runs import run_through
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


@given(CONTENTS, st.booleans(), st.integers(1, 4))
def test_any_bytes_give_the_records_of_the_format(contents: bytes, has_data: bool, most: int) -> None:
    reading, cursor = reference.read(contents), JournalCursor(BytesReader(contents), has_data=has_data)
    assert run_through(cursor, most).starts == [record.offset for record in reading.records]
    assert cursor.end.offset == reading.end
    assert (cursor.end.problem is None) == (reading.problem == "")
    assert cursor.end.is_unfinished == (reading.problem == "unfinished")
    assert (cursor.dump_at >= 0) == reading.is_closed


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
@pytest.mark.parametrize("part_bytes", range(len(REMOVE) + 1, len(REMOVE) + STATE_DUMP_RECORD.size + 2))
def test_state_dump_at_part_border_has_all_fields(part_bytes: int, has_data: bool) -> None:
    contents = REMOVE + state_dump(5, add_xid(1, b"x"))
    cursor = JournalCursor(BytesReader(contents), 0, len(contents), has_data=has_data, part_bytes=part_bytes)
    while cursor.next(1000):
        pass
    assert STATE_DUMP_RECORD.unpack_from(cursor.data, cursor.dump_at)[1:] == (5, 1)
