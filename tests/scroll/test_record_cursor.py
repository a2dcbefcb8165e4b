"""The record cursor: the records of a file, and where the file ends."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk import reader as disk_reader
from kestrel.disk.files import Disk
from kestrel.disk.reader import FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.scroll.record_cursor import ScrollRecordCursor
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC
from tests.journal.handwritten import BytesReader
from tests.scroll import independent
from tests.scroll.handwritten import READER, WRITER, T, put, read_done, read_head, targets, with_data

A, B, FOR_X = put(1, b"a"), put(2, b"bb"), targets(0, b"x")


def scanned(contents: bytes, magic: bytes = WRITER_MAGIC) -> tuple[list[tuple[int, bytes]], ReadEnd]:
    """Return offset and bytes of each record, and the end."""
    scan = ScrollRecordCursor(BytesReader(contents), magic)
    return [(offset, record.raw) for offset, record in scan], scan.end


def is_whole(end: ReadEnd) -> bool:
    return end.problem is None and not end.is_unfinished


def test_records_are_read_to_the_end_of_the_file() -> None:
    records, end = scanned(WRITER + A + FOR_X + B)
    assert records == [(4, A), (4 + len(A), FOR_X), (4 + len(A + FOR_X), B)]
    assert is_whole(end) and end.offset == len(WRITER + A + FOR_X + B)


@pytest.mark.parametrize("behind", [b"\0", bytes(4000), b"\0" + A, b"\0\xff"])
def test_zero_byte_is_the_proper_end(behind: bytes) -> None:
    records, end = scanned(WRITER + A + behind)
    assert [raw for _, raw in records] == [A]
    assert is_whole(end) and end.offset == len(WRITER + A)


def test_file_with_only_its_magic_is_complete() -> None:
    for contents in (WRITER, WRITER + bytes(100)):
        records, end = scanned(contents)
        assert (records, end.offset, is_whole(end)) == ([], 4, True)


def test_truncated_file_ends_behind_its_last_whole_record() -> None:
    contents = WRITER + A + B
    ends = {0: 0, 4: 4, 4 + len(A): 4 + len(A), len(contents): len(contents)}
    offset = 0
    for size in range(len(contents) + 1):
        offset = ends.get(size, offset)
        records, end = scanned(contents[:size])
        assert len(records) == (offset > 4) + (offset == len(contents))
        assert end.offset == offset
        assert end.is_unfinished == (size != offset or size == 0)
        assert (end.problem is not None) == end.is_unfinished


@pytest.mark.parametrize("contents", [READER_MAGIC + A, b"\0", bytes(100), b"\x27\x65", b"hello world"])
def test_file_with_other_magic_is_damaged_at_its_first_byte(contents: bytes) -> None:
    records, end = scanned(contents)
    assert (records, end.offset, end.is_unfinished) == ([], 0, False)
    assert end.problem == "it does not begin with 27 64 26 03"


def test_damage_ends_the_file_behind_the_last_good_record() -> None:
    records, end = scanned(WRITER + A + b"\x85" + B)
    assert [raw for _, raw in records] == [A]
    assert (end.offset, end.is_unfinished, end.problem) == (4 + len(A), False, "impossible header of 5 words")


# Records about the next record.


@pytest.mark.parametrize("behind", [b"", b"\0", bytes(1000), B[:-1], B[:1], FOR_X, FOR_X[:3]])
def test_targets_without_their_item_are_unfinished(behind: bytes) -> None:
    _, end = scanned(WRITER + A + FOR_X + behind)
    assert (end.offset, end.is_unfinished) == (4 + len(A), True)
    assert end.problem == "the last record is cut short"


def test_targets_before_damaged_item_are_cut_with_it() -> None:
    _, end = scanned(WRITER + A + FOR_X + b"\x85" + B)
    assert (end.offset, end.is_unfinished) == (4 + len(A), False)


def test_foreign_record_with_that_command_is_read_as_usual() -> None:
    foreign = with_data(12, b"abc")
    for contents in (WRITER + A + foreign, WRITER + A + foreign + bytes(10)):
        _, end = scanned(contents)
        assert is_whole(end) and end.offset == len(WRITER + A + foreign)


# Parts.


@pytest.mark.parametrize("part_bytes", [1, 2, 7, 30, 64])
def test_records_do_not_depend_on_part_size(monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    contents = WRITER + b"".join(FOR_X + put(each, b"x" * each) for each in range(1, 40)) + bytes(100)
    whole, whole_end = scanned(contents)
    monkeypatch.setattr(FileReader.part, "__defaults__", (part_bytes,))
    records, end = scanned(contents)
    assert records == whole and len(records) == 78
    assert (end.offset, end.problem) == (whole_end.offset, None)


def test_file_of_large_items_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "work.1"
    with path.open("wb") as file:
        file.write(WRITER)
        for item_id in range(1, 41):
            file.write(put(item_id, bytes(3 << 18)))
        file.write(put(41, bytes(5 << 20)))
    tracemalloc.start()
    try:
        with FileReader(Disk(), str(path).encode()) as reader:
            ids = [record.item_id for _, record in ScrollRecordCursor(reader, WRITER_MAGIC)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ids == list(range(1, 42))
    assert peak < 12 * disk_reader.PART_BYTES


RECORDS = st.sampled_from(
    [put(1, b"a"), put(2, b"", T, T), targets(0, b"x"), read_head(3), read_done(1, 2), with_data(15, b"?"), b"\0"]
)


@given(st.sampled_from([WRITER, READER, b""]), st.lists(RECORDS | st.binary(max_size=12), max_size=8).map(b"".join))
def test_any_bytes_give_the_records_of_the_independent_reader(magic: bytes, records: bytes) -> None:
    contents = magic + records
    for expected in (WRITER, READER):
        scan = ScrollRecordCursor(BytesReader(contents), expected)
        found = [(record.command, record.size) for _, record in scan]
        assert found == [
            (command, 1 + len(header) + len(data))
            for command, _, header, data in independent.records_of(contents, expected.hex())
        ]
        assert scan.end.offset <= len(contents)
        assert not scan.end.is_unfinished or scan.end.problem is not None
