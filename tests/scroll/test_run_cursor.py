"""The run cursor finds the records that a record cursor finds, with and without their data."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk.reader import PART_BYTES
from kestrel.disk.repair import ReadEnd
from kestrel.scroll.item_cursor import ScrollItemCursor
from kestrel.scroll.record_cursor import ScrollRecordCursor
from kestrel.scroll.records import READER_MAGIC, WRITER_MAGIC
from kestrel.scroll.run_cursor import ScrollRunCursor
from tests.journal.handwritten import BytesReader
from tests.scroll.handwritten import DELETED, READER, WRITER, errors, put, read_done, read_head, targets, with_data

PUTS = st.builds(put, st.integers(1, 9), st.binary(max_size=3), st.just(5), st.integers(0, 1))
OTHERS = st.sampled_from(
    [read_head(1), read_done(1, 2), errors(_7=1), targets(0, b"x"), targets(7), DELETED, with_data(15, b"?"), b"\x40"]
)
CONTENTS = st.lists(PUTS | OTHERS | st.binary(max_size=9), max_size=8).map(b"".join)
RISING = st.lists(st.integers(1, 99), unique=True).map(
    lambda ids: b"".join(targets(0, b"x") * (n % 3 == 0) + put(n, b"x" * (n % 5)) for n in sorted(ids))
)


class Run(NamedTuple):
    """The offsets of records, and where and how the file ended."""

    offsets: list[int]
    end: ReadEnd

    @property
    def how(self) -> tuple[int, str | None, bool]:
        """The end in a form that can be compared."""
        return self.end.offset, self.end.problem, self.end.is_unfinished


def run_through(
    contents: bytes,
    has_data: bool,
    magic: bytes = WRITER_MAGIC,
    most: int = 1000,
    start: int = 0,
    stop: int | None = None,
    part_bytes: int = PART_BYTES,
) -> Run:
    stop = len(contents) if stop is None else stop
    cursor = ScrollRunCursor(BytesReader(contents), magic, start, stop, has_data=has_data, part_bytes=part_bytes)
    offsets = []
    while cursor.next(most):
        assert 0 < len(cursor.starts) <= most
        offsets += [cursor.data_start + position for position in cursor.starts]
    return Run(offsets, cursor.end)


def scanned(contents: bytes, magic: bytes) -> Run:
    scan = ScrollRecordCursor(BytesReader(contents), magic)
    return Run([offset for offset, _ in scan], scan.end)


@given(CONTENTS, st.booleans(), st.integers(1, 4))
def test_reader_file_has_the_records_of_a_scan(contents: bytes, has_data: bool, most: int) -> None:
    cursor, scan = (
        run_through(READER + contents, has_data, READER_MAGIC, most),
        scanned(READER + contents, READER_MAGIC),
    )
    assert (cursor.offsets, cursor.how) == (scan.offsets, scan.how)


@given(CONTENTS | RISING, st.booleans(), st.integers(1, 4))
def test_writer_file_has_records_of_scan_until_id_falls(contents: bytes, has_data: bool, most: int) -> None:
    contents = WRITER + contents
    cursor, scan = run_through(contents, has_data, most=most), scanned(contents, WRITER_MAGIC)
    ids = [
        record.item_id for _, record in ScrollRecordCursor(BytesReader(contents), WRITER_MAGIC) if record.command == 8
    ]
    rises = all(before < after for before, after in pairwise(ids))
    if rises:
        assert (cursor.offsets, cursor.how) == (scan.offsets, scan.how)
    else:
        assert cursor.offsets == scan.offsets[: len(cursor.offsets)]
        assert cursor.end.problem == "impossible id" and not cursor.end.is_unfinished


@given(CONTENTS | RISING, st.booleans())
def test_good_part_of_writer_file_matches_the_server(contents: bytes, has_data: bool) -> None:
    contents = WRITER + contents
    items = ScrollItemCursor(BytesReader(contents), 4)
    while items.next():
        pass
    # Bytes behind zeros matter only to an appending server.
    if items.end.problem != "zeros before other bytes":
        assert run_through(contents, has_data).how == (items.end.offset, items.end.problem, items.end.is_unfinished)


@given(RISING, st.booleans(), st.data())
def test_two_parts_have_the_records_of_the_whole(contents: bytes, has_data: bool, data: st.DataObject) -> None:
    contents = WRITER + contents
    whole = run_through(contents, has_data)
    begins = data.draw(st.sampled_from([*whole.offsets, whole.end.offset]))
    first = run_through(contents, has_data, stop=begins)
    second = run_through(contents, has_data, start=begins)
    assert first.offsets + second.offsets == whole.offsets
    assert first.end.problem is None
    assert second.how == whole.how


@pytest.mark.parametrize("begins_with", [b"", b"\x27", b"\x27\x64\x26", b"\x27\x65", READER_MAGIC + put(1, b"a")])
def test_file_with_other_magic_ends_as_in_a_scan(begins_with: bytes) -> None:
    cursor, scan = run_through(begins_with, True), scanned(begins_with, WRITER_MAGIC)
    assert (cursor.offsets, cursor.how) == ([], scan.how)
    assert cursor.end.problem is not None


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("part_bytes", [1, 2, 7, 40])
def test_records_do_not_depend_on_part_borders(part_bytes: int, has_data: bool) -> None:
    contents = WRITER + put(1, b"a") + targets(1, b"x", b"y") + put(2, b"b" * 90, 5, 6) + put(3, b"cut")[:-1]
    whole = run_through(contents, has_data)
    cursor = run_through(contents, has_data, part_bytes=part_bytes)
    assert (len(cursor.offsets), cursor.end.is_unfinished) == (3, True)
    assert (cursor.offsets, cursor.how) == (whole.offsets, whole.how)


def test_data_of_large_items_is_not_read_if_unwanted() -> None:
    contents = WRITER + b"".join(put(n, b"x" * 3_000_000) for n in range(1, 11))
    reader = BytesReader(contents)
    cursor = ScrollRunCursor(reader, WRITER_MAGIC, 0, len(contents), has_data=False)
    while cursor.next(1000):
        pass
    assert cursor.end.offset == len(contents)
    assert reader.read_bytes < 2_000_000


def test_wanted_data_is_available_for_items_of_any_size() -> None:
    contents = WRITER + put(1, b"a") + put(2, b"x" * 3_000_000) + put(3, b"b")
    cursor = ScrollRunCursor(BytesReader(contents), WRITER_MAGIC, 0, len(contents), has_data=True)
    items = []
    while cursor.next(1000):
        ends = [*cursor.starts[1:], cursor.run_end]
        items += [cursor.data[start + 25 : end] for start, end in zip(cursor.starts, ends, strict=True)]
    assert items == [b"a", b"x" * 3_000_000, b"b"]


def test_item_in_a_reader_file_may_have_any_id() -> None:
    assert len(run_through(READER + put(5, b"a") + put(4, b"b"), True, READER_MAGIC).offsets) == 2
