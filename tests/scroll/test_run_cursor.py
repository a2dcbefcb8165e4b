"""Going from record to record of a scroll file: the records that a scan finds, with and without their data."""

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
from tests.journal.made import BytesReader
from tests.scroll.made import DELETED, READER, WRITER, errors, put, read_done, read_head, targets, with_data

PUTS = st.builds(put, st.integers(1, 9), st.binary(max_size=3), st.just(5), st.integers(0, 1))
OTHERS = st.sampled_from(
    [read_head(1), read_done(1, 2), errors(_7=1), targets(0, b"x"), targets(7), DELETED, with_data(15, b"?"), b"\x40"]
)
CONTENTS = st.lists(PUTS | OTHERS | st.binary(max_size=9), max_size=8).map(b"".join)
RISING = st.lists(st.integers(1, 99), unique=True).map(
    lambda ids: b"".join(targets(0, b"x") * (n % 3 == 0) + put(n, b"x" * (n % 5)) for n in sorted(ids))
)


class CountingReader(BytesReader):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, offset: int, size: int) -> bytes:
        data = super().read(offset, size)
        self.taken += len(data)
        return data


class Gone(NamedTuple):
    """Where records begin, as offsets; where and how that ended."""

    offsets: list[int]
    end: ReadEnd

    @property
    def how(self) -> tuple[int, str | None, bool]:
        """The end, to be compared."""
        return self.end.offset, self.end.problem, self.end.is_unfinished


def gone_through(
    contents: bytes,
    has_data: bool,
    magic: bytes = WRITER_MAGIC,
    most: int = 1000,
    start: int = 0,
    stop: int | None = None,
    part_bytes: int = PART_BYTES,
) -> Gone:
    stop = len(contents) if stop is None else stop
    hops = ScrollRunCursor(BytesReader(contents), magic, start, stop, has_data=has_data, part_bytes=part_bytes)
    offsets = []
    while hops.next(most):
        assert 0 < len(hops.starts) <= most
        offsets += [hops.data_start + position for position in hops.starts]
    return Gone(offsets, hops.end)


def scanned(contents: bytes, magic: bytes) -> Gone:
    scan = ScrollRecordCursor(BytesReader(contents), magic)
    return Gone([offset for offset, _ in scan], scan.end)


@given(CONTENTS, st.booleans(), st.integers(1, 4))
def test_a_reader_file_has_the_records_that_a_scan_finds(contents: bytes, has_data: bool, most: int) -> None:
    hops, scan = (
        gone_through(READER + contents, has_data, READER_MAGIC, most),
        scanned(READER + contents, READER_MAGIC),
    )
    assert (hops.offsets, hops.how) == (scan.offsets, scan.how)


@given(CONTENTS | RISING, st.booleans(), st.integers(1, 4))
def test_a_writer_file_has_the_records_that_a_scan_finds_up_to_an_id_that_does_not_rise(
    contents: bytes, has_data: bool, most: int
) -> None:
    contents = WRITER + contents
    hops, scan = gone_through(contents, has_data, most=most), scanned(contents, WRITER_MAGIC)
    ids = [
        record.item_id for _, record in ScrollRecordCursor(BytesReader(contents), WRITER_MAGIC) if record.command == 8
    ]
    rises = all(before < after for before, after in pairwise(ids))
    if rises:
        assert (hops.offsets, hops.how) == (scan.offsets, scan.how)
    else:
        assert hops.offsets == scan.offsets[: len(hops.offsets)]
        assert hops.end.problem == "impossible id" and not hops.end.is_unfinished


@given(CONTENTS | RISING, st.booleans())
def test_a_writer_file_is_good_as_far_as_the_server_finds_it_good(contents: bytes, has_data: bool) -> None:
    contents = WRITER + contents
    walk = ScrollItemCursor(BytesReader(contents), 4)
    while walk.next():
        pass
    if walk.end.problem != "zeros before other bytes":  # what is behind zeros is of interest to who appends
        assert gone_through(contents, has_data).how == (walk.end.offset, walk.end.problem, walk.end.is_unfinished)


@given(RISING, st.booleans(), st.data())
def test_two_parts_of_a_file_have_the_records_of_the_whole(
    contents: bytes, has_data: bool, data: st.DataObject
) -> None:
    contents = WRITER + contents
    whole = gone_through(contents, has_data)
    begins = data.draw(st.sampled_from([*whole.offsets, whole.end.offset]))
    first = gone_through(contents, has_data, stop=begins)
    second = gone_through(contents, has_data, start=begins)
    assert first.offsets + second.offsets == whole.offsets
    assert first.end.problem is None
    assert second.how == whole.how


@pytest.mark.parametrize("begins_with", [b"", b"\x27", b"\x27\x64\x26", b"\x27\x65", READER_MAGIC + put(1, b"a")])
def test_a_file_that_begins_otherwise_ends_as_a_scan_ends(begins_with: bytes) -> None:
    hops, scan = gone_through(begins_with, True), scanned(begins_with, WRITER_MAGIC)
    assert (hops.offsets, hops.how) == ([], scan.how)
    assert hops.end.problem is not None


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("part_bytes", [1, 2, 7, 40])
def test_it_does_not_matter_where_parts_end(part_bytes: int, has_data: bool) -> None:
    contents = WRITER + put(1, b"a") + targets(1, b"x", b"y") + put(2, b"b" * 90, 5, 6) + put(3, b"cut")[:-1]
    whole = gone_through(contents, has_data)
    hops = gone_through(contents, has_data, part_bytes=part_bytes)
    assert (len(hops.offsets), hops.end.is_unfinished) == (3, True)
    assert (hops.offsets, hops.how) == (whole.offsets, whole.how)


def test_the_data_of_large_items_is_not_read_where_it_is_not_wanted() -> None:
    contents = WRITER + b"".join(put(n, b"x" * 3_000_000) for n in range(1, 11))
    reader = CountingReader(contents)
    hops = ScrollRunCursor(reader, WRITER_MAGIC, 0, len(contents), has_data=False)
    while hops.next(1000):
        pass
    assert hops.end.offset == len(contents)
    assert reader.taken < 2_000_000


def test_of_an_item_of_any_size_the_data_is_at_hand_where_it_is_wanted() -> None:
    contents = WRITER + put(1, b"a") + put(2, b"x" * 3_000_000) + put(3, b"b")
    hops = ScrollRunCursor(BytesReader(contents), WRITER_MAGIC, 0, len(contents), has_data=True)
    items = []
    while hops.next(1000):
        ends = [*hops.starts[1:], hops.run_end]
        items += [hops.data[start + 25 : end] for start, end in zip(hops.starts, ends, strict=True)]
    assert items == [b"a", b"x" * 3_000_000, b"b"]


def test_an_item_that_means_nothing_in_a_reader_file_may_have_any_id() -> None:
    assert len(gone_through(READER + put(5, b"a") + put(4, b"b"), True, READER_MAGIC).offsets) == 2
