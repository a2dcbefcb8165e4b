"""Reading items that are only on disk: in order, each once, as many as there is room for."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk.reader import PART_BYTES
from kestrel.journal.item_reader import DamagedJournalFile, JournalItemsRead, read_items
from tests.journal.handwritten import (
    REMOVE,
    REMOVE_TENTATIVE,
    BytesReader,
    add,
    add_xid,
    addx,
    confirm,
    continue_,
    open_,
    save_xid,
    unremove,
)

NOW_MS = 77

A, B, C = addx(b"a"), addx(b"bb"), addx(b"ccc")
BETWEEN = REMOVE + open_(1) + confirm(1) + unremove(2) + REMOVE_TENTATIVE + save_xid(9)


def read(
    contents: bytes, offset: int = 0, *, start: int = 0, skip: int = 0, items: int = 99, room_bytes: int = 1 << 30
) -> JournalItemsRead:
    reader = BytesReader(contents)
    return read_items(reader, start, offset, start + len(contents), skip, items, room_bytes, NOW_MS)


def test_items_are_read_and_other_records_skipped() -> None:
    contents = BETWEEN + A + BETWEEN + B + BETWEEN
    assert read(contents) == ([A, B], len(contents), 0)


def test_reading_continues_where_it_ended() -> None:
    first = read(A + REMOVE + B + C, items=1)
    assert first == ([A], len(A + REMOVE), 0)
    assert read(A + REMOVE + B + C, first.offset).records == [B, C]


def test_offsets_count_from_start_of_history() -> None:
    assert read(A + B, 1000 + len(A), start=1000) == ([B], 1000 + len(A + B), 0)


def test_items_are_skipped_first() -> None:
    assert read(A + B + C, skip=2) == ([C], len(A + B + C), 0)


def test_number_of_known_items_is_the_limit() -> None:
    assert read(A + B + C, items=2) == ([A, B], len(A + B), 0)


@pytest.mark.parametrize(("room_bytes", "expected"), [(1, [A]), (2, [A, B]), (3, [A, B]), (4, [A, B, C])])
def test_items_are_read_until_room_is_used_up(room_bytes: int, expected: list[bytes]) -> None:
    assert read(A + B + C, room_bytes=room_bytes).records == expected


def test_one_item_is_read_without_room() -> None:
    assert read(A + B, room_bytes=0).records == [A]


def test_items_of_older_records_become_current_records() -> None:
    contents = add(b"oldest", expiry_s=2) + add_xid(4, b"old", 5, 6) + continue_(3, b"on", 7, 8)
    assert read(contents).records == [addx(b"oldest", NOW_MS, 2000), addx(b"old", 5, 6), addx(b"on", 7, 8)]


def test_item_larger_than_a_part_is_complete() -> None:
    large = addx(bytes(3 * PART_BYTES))
    assert read(A + large + B, items=2).records == [A]
    assert read(A + large + B, len(A)).records == [large]


def test_many_removes_are_skipped_at_once() -> None:
    contents = REMOVE * (2 * PART_BYTES + 5) + A
    assert read(contents).records == [A]


def test_end_without_an_item_is_a_valid_result() -> None:
    assert read(A + REMOVE * 5, len(A)) == ([], len(A) + 5, 0)


def test_damage_behind_the_last_needed_item_is_ignored() -> None:
    assert read(A + b"\xee", items=1).records == [A]


@pytest.mark.parametrize("contents", [b"\xee", A[:-1], A[:3]], ids=["no record", "cut short", "a cut header"])
def test_changed_file_is_an_error(contents: bytes) -> None:
    with pytest.raises(OSError, match="damaged"):
        read(contents)


@pytest.mark.parametrize("contents", [b"", REMOVE, REMOVE + A[:5]], ids=["nothing", "no item", "half an item"])
def test_shortened_file_is_an_error_and_not_an_endless_loop(contents: bytes) -> None:
    with pytest.raises(DamagedJournalFile):
        read_items(BytesReader(contents), 0, 0, len(REMOVE + A), 0, 99, 1 << 30, NOW_MS)


@given(st.lists(st.sampled_from([A, B, C, BETWEEN]), max_size=20), st.data())
def test_each_item_is_read_once_in_any_number_of_steps(records: list[bytes], data: st.DataObject) -> None:
    contents, found, offset, skip = b"".join(records), [], 0, 0
    expected = [record for record in records if record != BETWEEN]
    while offset < len(contents):
        items = data.draw(st.integers(1, 5))
        step = read(contents, offset, skip=skip, items=items, room_bytes=data.draw(st.integers(0, 6)))
        found += step.records
        offset, skip = step.offset, step.skip
    assert found == expected
