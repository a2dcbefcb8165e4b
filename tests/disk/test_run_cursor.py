"""Cursors of journals and scrolls read runs of records, whatever the size of a part, with and without the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk.run_cursor import RunCursor
from kestrel.journal.cursor import JournalCursor
from kestrel.scroll.cursor import ScrollCursor
from kestrel.scroll.records import WRITER_MAGIC
from tests.disk.cursor_runs import run_through
from tests.journal.handwritten import BytesReader, add, addx, open_, save_xid, unremove
from tests.journal.test_cursor import CONTENTS
from tests.scroll.handwritten import WRITER, put, targets
from tests.scroll.test_cursor import RISING


class Format(NamedTuple):
    """A format of files."""

    cursor: Callable[..., RunCursor]
    magic: bytes
    item: Callable[[int, bytes], bytes]
    """Returns the record of an item with this id and these data."""
    item_header_bytes: int
    contents: st.SearchStrategy[bytes]
    cut: bytes
    """Records of several kinds, the last one of which is cut short."""


FORMATS = {
    "journal": Format(
        JournalCursor,
        b"",
        lambda item_id, data: addx(data),
        21,
        CONTENTS,
        addx(b"a") + open_(1) + save_xid(3) + unremove(1) + add(b"bcd") + addx(b"x" * 50) + addx(b"cut")[:-1],
    ),
    "scroll": Format(
        partial(ScrollCursor, magic=WRITER_MAGIC),
        WRITER,
        put,
        25,
        RISING,
        put(1, b"a") + targets(1, b"x", b"y") + put(2, b"b" * 90, 5, 6) + put(3, b"cut")[:-1],
    ),
}
EACH = pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)


@EACH
@pytest.mark.parametrize("has_data", [True, False])
def test_two_parts_have_the_records_of_the_whole(kind: Format, has_data: bool) -> None:
    @given(kind.contents, st.data())
    def check(contents: bytes, data: st.DataObject) -> None:
        reader = BytesReader(kind.magic + contents)
        whole = run_through(kind.cursor(reader, has_data=has_data))
        begins = data.draw(st.sampled_from([*whole.starts, whole.end.offset]))
        first = run_through(kind.cursor(reader, has_data=has_data, stop=begins))
        second = run_through(kind.cursor(reader, has_data=has_data, start=begins))
        assert first.bounds + second.bounds == whole.bounds
        assert first.end.problem is None
        assert second.how == whole.how

    check()


@EACH
@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("part_bytes", [1, 2, 7, 30, 40])
def test_records_do_not_depend_on_part_borders(kind: Format, part_bytes: int, has_data: bool) -> None:
    contents = kind.magic + kind.cut
    whole = run_through(kind.cursor(BytesReader(contents), has_data=has_data))
    assert (len(whole.bounds) >= 3, whole.end.is_unfinished) == (True, True)
    runs = run_through(kind.cursor(BytesReader(contents), has_data=has_data, part_bytes=part_bytes))
    assert (runs.bounds, runs.how) == (whole.bounds, whole.how)


@EACH
def test_data_of_large_items_is_not_read_if_unwanted(kind: Format) -> None:
    contents = kind.magic + b"".join(kind.item(item_id, b"x" * 3_000_000) for item_id in range(1, 11))
    reader = BytesReader(contents)
    assert run_through(kind.cursor(reader, has_data=False)).end.offset == len(contents)
    assert reader.read_bytes < 2_000_000


@EACH
def test_wanted_data_is_available_for_items_of_any_size(kind: Format) -> None:
    datas = [b"a", b"x" * 3_000_000, b"b"]
    contents = kind.magic + b"".join(kind.item(item_id, data) for item_id, data in enumerate(datas, 1))
    cursor = kind.cursor(BytesReader(contents), has_data=True)
    found = []
    while cursor.next(1000):
        found += [cursor.data[start + kind.item_header_bytes : end] for start, end in cursor.bounds()]
    assert found == datas
