"""The cursor: the records and items of a file, with and without their data, and where the file ends."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk import reader as disk_reader
from kestrel.disk.files import Disk
from kestrel.disk.reader import PART_BYTES, FileReader
from kestrel.disk.repair import ReadEnd
from kestrel.scroll.cursor import ScrollCursor, ScrollItem
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC, RecordCommand, Targets
from tests.disk.cursor_runs import run_through
from tests.journal.handwritten import BytesReader
from tests.scroll import independent
from tests.scroll.handwritten import DELETED, READER, WRITER, errors, put, read_done, read_head, targets, with_data

A, B, FOR_X = put(1, b"a"), put(2, b"bb"), targets(0, b"x")

PUTS = st.builds(put, st.integers(1, 9), st.binary(max_size=3), st.just(5), st.integers(0, 1))
OTHERS = st.sampled_from(
    [read_head(1), read_done(1, 2), errors(_7=1), FOR_X, targets(7), DELETED, with_data(15, b"?"), b"\x40", b"\0"]
)
CONTENTS = st.lists(PUTS | OTHERS | st.binary(max_size=9), max_size=8).map(b"".join)
RISING = st.lists(st.integers(1, 99), unique=True).map(
    lambda ids: b"".join(FOR_X * (n % 3 == 0) + put(n, b"x" * (n % 5)) for n in sorted(ids))
)


def scanned(contents: bytes, magic: bytes = WRITER_MAGIC) -> tuple[list[tuple[int, bytes]], ReadEnd]:
    """Return offset and bytes of each record, and the end."""
    cursor = ScrollCursor(BytesReader(contents), magic)
    return [(offset, record.raw) for offset, record in cursor.records()], cursor.end


def is_whole(end: ReadEnd) -> bool:
    return end.problem is None and not end.is_unfinished


@pytest.mark.parametrize("behind", [b"\0", bytes(4000)])
def test_zeros_are_the_proper_end(behind: bytes) -> None:
    records, end = scanned(WRITER + A + behind)
    assert [raw for _, raw in records] == [A]
    assert is_whole(end) and end.offset == len(WRITER + A)


@pytest.mark.parametrize("behind", [b"\0" + B, b"\0\xff", bytes(2 * PART_BYTES) + b"\1"])
def test_bytes_after_zeros_are_unfinished(behind: bytes) -> None:
    records, end = scanned(WRITER + A + behind)
    assert [raw for _, raw in records] == [A]
    assert (end.offset, end.is_unfinished, end.problem) == (len(WRITER + A), True, "zeros before other bytes")


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
            ids = [record.item_id for _, record in ScrollCursor(reader, WRITER_MAGIC).records()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ids == list(range(1, 42))
    assert peak < 12 * disk_reader.PART_BYTES


@given(CONTENTS | RISING, st.sampled_from([WRITER, READER, b""]), st.booleans(), st.integers(1, 4), st.integers(1, 60))
def test_any_bytes_give_the_records_of_the_independent_reader(
    contents: bytes, begins_with: bytes, has_data: bool, most: int, part_bytes: int
) -> None:
    contents = begins_with + contents
    for magic in (WRITER_MAGIC, READER_MAGIC):
        cursor = ScrollCursor(BytesReader(contents), magic, has_data=has_data, part_bytes=part_bytes)
        runs = run_through(cursor, most)
        cursor = ScrollCursor(BytesReader(contents, part_bytes), magic)
        found = [(record.command, record.size, record.item_id) for _, record in cursor.records()]
        assert [size for _, size, _ in found] == [end - start for start, end in runs.bounds]
        assert (cursor.end.offset, cursor.end.problem, cursor.end.is_unfinished) == runs.how
        expected = [
            (command, 1 + len(header) + len(data))
            for command, _, header, data in independent.records_of(contents, magic.hex())
        ]
        if "not higher" in (cursor.end.problem or ""):
            expected = expected[: len(found)]
            assert magic == WRITER_MAGIC and not cursor.end.is_unfinished
        assert [(command, size) for command, size, _ in found] == expected
        ids = [item_id for command, _, item_id in found if command == RecordCommand.PUT]
        assert magic == READER_MAGIC or ids == sorted(set(ids))
        assert cursor.end.offset <= len(contents)
        assert not cursor.end.is_unfinished or cursor.end.problem is not None


@pytest.mark.parametrize("ids", [(2, 1), (2, 2), (3, 4, 1)])
def test_id_that_does_not_rise_damages_a_writer_file(ids: tuple[int, ...]) -> None:
    contents = b"".join(put(each, b"a") for each in ids)
    records, end = scanned(WRITER + contents)
    assert (len(records), end.is_unfinished) == (len(ids) - 1, False)
    assert end.problem == f"the id {ids[-1]} is not higher than the one before it"
    assert end.offset == len(WRITER + contents) - len(put(1, b"a"))
    records, end = scanned(READER + contents, READER_MAGIC)
    assert len(records) == len(ids) and is_whole(end)


def items_of(contents: bytes) -> list[tuple[int, int, int, Targets | None]]:
    """Return id, offset, size and targets of each item, from the records of the file."""
    found = []
    targets_at, its_targets = None, None
    for offset, record in ScrollCursor(BytesReader(contents), WRITER_MAGIC).records():
        if record.command == RecordCommand.PUT:
            begin = offset if targets_at is None else targets_at
            found.append((record.item_id, begin, record.data_size, its_targets))
        its_targets = record.targets if record.command == RecordCommand.TARGETS else None
        targets_at = None if its_targets is None else offset if targets_at is None else targets_at
    return found


@given(RISING | CONTENTS, st.integers(0, 99), st.integers(1, 5), st.integers(1, 80))
def test_items_have_the_targets_before_them(contents: bytes, first_id: int, most: int, part_bytes: int) -> None:
    contents = WRITER + contents
    cursor = ScrollCursor(BytesReader(contents), WRITER_MAGIC, has_data=False, part_bytes=part_bytes)
    items: list[ScrollItem] = []
    while cursor.next(most):
        of_run = list(cursor.items_of_run(first_id))
        items += of_run
        if cursor.has_only_items and first_id == 0:
            assert [item.item_id for item in of_run] == cursor.ids
            assert sum(item.data_bytes for item in of_run) == cursor.data_bytes
            assert all(item.targets is None for item in of_run)
    expected = items_of(contents)
    assert [(item.item_id, item.offset, item.data_bytes, item.targets) for item in items] == [
        each for each in expected if each[0] >= first_id
    ]
