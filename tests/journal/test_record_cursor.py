"""The record cursor, as tools use it: the same records as in a replay."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.journal.opcodes import Opcode
from kestrel.journal.record_cursor import JournalRecordCursor
from tests.journal import reference
from tests.journal.handwritten import BytesReader, add, add_xid, addx, continue_, open_, save_xid, state_dump, unremove

RECORDS = st.sampled_from(
    [add(b"a"), addx(b"bc"), open_(1), save_xid(2), unremove(1), add_xid(3, b""), continue_(1, b"d"), state_dump(1)]
)


@given(st.lists(RECORDS | st.binary(max_size=12), max_size=8).map(b"".join))
def test_any_bytes_give_the_records_of_the_format(contents: bytes) -> None:
    reading, scan = reference.read(contents), JournalRecordCursor(BytesReader(contents))
    assert [(offset, record.opcode) for offset, record in scan] == [
        (record.offset, Opcode(record.opcode)) for record in reading.records
    ]
    assert (scan.end.offset, scan.end.is_closed, scan.end.records) == (
        reading.end, reading.is_closed, len(reading.records),
    )  # fmt: skip
    assert (scan.end.problem is None) == (reading.problem == "")
    assert scan.end.is_unfinished == (reading.problem == "unfinished")


@pytest.mark.parametrize("part_bytes", [1, 2, 7, 30])
def test_records_do_not_depend_on_part_borders(monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    contents = addx(b"a") + open_(1) + save_xid(3) + unremove(1) + add(b"bcd") + addx(b"x" * 50) + addx(b"cut")[:-1]
    whole = [(offset, record.opcode, record.errors) for offset, record in JournalRecordCursor(BytesReader(contents))]
    monkeypatch.setattr("kestrel.journal.record_cursor.PART_BYTES", part_bytes)
    scan = JournalRecordCursor(BytesReader(contents))
    assert [(offset, record.opcode, record.errors) for offset, record in scan] == whole
    assert (scan.end.is_unfinished, scan.end.offset) == (True, len(contents) - len(addx(b"cut")) + 1)
