"""Reading items of a writer file into memory for one reader, in parts."""

from __future__ import annotations

import random

import pytest

from kestrel.disk.reader import PART_BYTES
from kestrel.scroll.item_reader import DamagedScrollFile, ScrollItemsRead, read_items
from kestrel.scroll.records import MAX_DATA_BYTES, decode_put, id_of
from tests.journal.handwritten import BytesReader, i32, i64
from tests.scroll.handwritten import ALL_BUT_X, WIDE_PUT, WRITER, X_ALONE, T, put, read_head, with_data

ROOM = 1 << 40
MANY = 1 << 40


def read_once(
    contents: bytes | BytesReader, end: int | None = None, first_id: int = 1, most_items: int = MANY, room: int = ROOM
) -> ScrollItemsRead:
    """Read one part for the reader `y` from the first record on."""
    reader = BytesReader(contents) if isinstance(contents, bytes) else contents
    return read_items(reader, 4, reader.size if end is None else end, first_id, b"y", most_items, room)


def read_all(
    contents: bytes,
    target_reader: bytes = b"y",
    first_id: int = 1,
    offset: int = 4,
    most_items: int = MANY,
    room: int = ROOM,
) -> list[ScrollItemsRead]:
    """Read every part, the last one without items."""
    reads = []
    while True:
        read = read_items(BytesReader(contents), offset, len(contents), first_id, target_reader, most_items, room)
        reads.append(read)
        if not read.records:
            return reads
        first_id, offset = read.next_id, read.offset


def records_of(reads: list[ScrollItemsRead]) -> list[bytes]:
    return [record for read in reads for record in read.records]


def ids(contents: bytes, target_reader: bytes = b"y", **how: int) -> list[int]:
    return [id_of(record) for record in records_of(read_all(contents, target_reader, **how))]


# Which items are read.


def test_items_are_read_as_records_in_order() -> None:
    records = [put(1, b"a"), put(2, b"", errors=7), put(4, b"bc", expiry_ms=T + 1)]
    assert records_of(read_all(WRITER + b"".join(records))) == records


def test_items_of_other_readers_are_skipped() -> None:
    contents = WRITER + put(1, b"a") + X_ALONE + put(2, b"b") + ALL_BUT_X + put(3, b"c") + put(4, b"d")
    assert (ids(contents, b"x"), ids(contents, b"y")) == ([1, 2, 4], [1, 3, 4])


def test_next_id_is_behind_skipped_items() -> None:
    contents = WRITER + b"".join(X_ALONE + put(item_id, b"a") for item_id in range(1, 1001))
    (read,) = read_all(contents, b"y")
    assert (read.records, read.next_id, read.offset) == ([], 1001, len(contents))


@pytest.mark.parametrize(
    "record", [read_head(9), with_data(14, b"?" * 5000), b"\x32????????", with_data(12, b"\7"), with_data(9, b"")]
)
def test_other_records_are_skipped_and_end_their_targets(record: bytes) -> None:
    contents = WRITER + record + put(1, b"a") + X_ALONE + record + put(2, b"b") + record
    assert ids(contents, b"y") == [1, 2]


def test_item_with_wide_header_is_read() -> None:
    contents = WRITER + put(1, b"a") + WIDE_PUT + put(3, b"b")
    records = records_of(read_all(contents))
    assert [id_of(record) for record in records] == [1, 2, 3]
    item = decode_put(records[1])
    assert (item.data, item.errors, item.expiry_ms) == (b"wide", 3, 0)
    assert ids(WRITER + X_ALONE + WIDE_PUT, b"y") == []
    assert ids(WRITER + X_ALONE + WIDE_PUT, b"x") == [2]


@pytest.mark.parametrize("odd", [2, 1, 0, -1])
@pytest.mark.parametrize("before", [b"", X_ALONE], ids=["for all", "for another"])
def test_id_that_does_not_rise_is_damage(odd: int, before: bytes) -> None:
    contents = WRITER + put(2, b"a") + before + put(odd, b"again") + put(3, b"b")
    with pytest.raises(DamagedScrollFile):
        read_once(contents, first_id=2)


@pytest.mark.parametrize("odd", [0, -1, -(1 << 63)])
def test_item_below_first_id_is_skipped(odd: int) -> None:
    assert ids(WRITER + put(odd, b"odd") + put(3, b"b")) == [3]


def test_ids_of_an_earlier_file_are_skipped() -> None:
    contents = WRITER + put(2, b"a") + X_ALONE + put(3, b"b") + put(4, b"c") + put(5, b"d")
    assert (ids(contents, b"y", first_id=5), ids(contents, b"x", first_id=3)) == ([5], [3, 4, 5])


def test_reading_continues_at_any_item_from_any_earlier_offset() -> None:
    records = [put(item_id, b"%d" % item_id) for item_id in range(1, 101)]
    contents = WRITER + b"".join(records)
    for first_id in (1, 2, 50, 99, 100):
        for before in (1, first_id // 2 + 1, first_id):
            offset = 4 + len(b"".join(records[: before - 1]))
            assert ids(contents, first_id=first_id, offset=offset) == list(range(first_id, 101))


def test_bytes_behind_the_end_are_ignored() -> None:
    good = WRITER + put(1, b"a")
    for behind in (put(2, b"b"), b"\xff" * 99, bytes(99)):
        read = read_once(good + behind, len(good))
        assert (read.records, read.next_id, read.offset) == ([put(1, b"a")], 2, len(good))


def test_nothing_is_read_at_the_end() -> None:
    contents = WRITER + put(1, b"a")
    reader = BytesReader(contents)
    assert read_items(reader, len(contents), len(contents), 2, b"y", MANY, ROOM) == ([], 2, len(contents))
    assert reader.read_bytes == 0


# How many items are read at once.


def test_requested_number_of_items_is_the_limit() -> None:
    contents = WRITER + b"".join(put(item_id, b"a") for item_id in range(1, 11))
    reads = read_all(contents, most_items=4)
    assert [len(read.records) for read in reads] == [4, 4, 2, 0]
    assert [(read.next_id, read.offset) for read in reads[:2]] == [(5, 4 + 4 * 26), (9, 4 + 8 * 26)]


def test_room_limits_items_but_one_may_exceed_it() -> None:
    contents = WRITER + b"".join(put(item_id, bytes(100)) for item_id in range(1, 11))
    assert [len(read.records) for read in read_all(contents, room=250)] == [3, 3, 3, 1, 0]
    assert [len(read.records) for read in read_all(contents, room=300)] == [3, 3, 3, 1, 0]


@pytest.mark.parametrize("room", [0, -1, -(1 << 40)])
def test_one_item_is_read_without_room(room: int) -> None:
    contents = WRITER + b"".join(put(item_id, bytes(9)) for item_id in range(1, 4))
    assert [len(read.records) for read in read_all(contents, room=room)] == [1, 1, 1, 0]


def test_item_with_wide_header_uses_room() -> None:
    reads = read_all(WRITER + put(1, b"a") + WIDE_PUT + put(3, b"b"), most_items=1)
    assert [len(read.records) for read in reads] == [1, 1, 1, 0]
    assert ids(WRITER + put(1, b"a") + WIDE_PUT + put(3, b"b"), room=0) == [1, 2, 3]


# Borders of parts.


@pytest.mark.parametrize("margin", range(-40, 41, 3))
def test_item_across_a_part_border_is_complete(margin: int) -> None:
    first = put(1, bytes(4096 - 25 + margin))
    contents = WRITER + first + X_ALONE + put(2, b"for x") + put(3, b"for all") + X_ALONE + put(4, b"for x")
    assert ids(contents, b"x", room=1) == ids(contents, b"x") == [1, 2, 3, 4]
    assert ids(contents, b"y", room=1) == ids(contents, b"y") == [1, 3]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("target_reader", [b"x", b"y"])
def test_each_item_is_read_once_with_any_room(seed: int, target_reader: bytes) -> None:
    rng = random.Random(seed)
    parts, expected = [WRITER], []
    for item_id in range(1, 400):
        item_targets = rng.choice((b"", b"", X_ALONE, ALL_BUT_X, with_data(14, bytes(rng.choice((3, 4100))))))
        record = put(item_id, rng.randbytes(rng.choice((0, 10, 100, 1000, 4090, 5000))))
        parts += [item_targets, record]
        if (item_targets != X_ALONE or target_reader == b"x") and (item_targets != ALL_BUT_X or target_reader == b"y"):
            expected.append(record)
    contents = b"".join(parts)
    for room, most_items in ((ROOM, MANY), (0, MANY), (5000, MANY), (100_000, 7), (ROOM, 1)):
        assert records_of(read_all(contents, target_reader, most_items=most_items, room=room)) == expected


@pytest.mark.parametrize(("room", "most_read_bytes"), [(ROOM, PART_BYTES + 4096), (10_000, 20_000)])
def test_bytes_read_are_bounded_by_one_mebibyte_and_the_room(room: int, most_read_bytes: int) -> None:
    reader = BytesReader(WRITER + b"".join(put(item_id, bytes(1000)) for item_id in range(1, 3001)))
    read = read_once(reader, room=room)
    assert len(read.records) * 1025 <= reader.read_bytes <= most_read_bytes


# Large items.


@pytest.mark.parametrize("size", [PART_BYTES - 25, PART_BYTES, 3 * PART_BYTES, MAX_DATA_BYTES])
def test_item_larger_than_a_part_is_complete(size: int) -> None:
    record = put(2, bytes(size))
    contents = WRITER + put(1, b"a") + record + put(3, b"b")
    assert records_of(read_all(contents, room=10)) == [put(1, b"a"), record, put(3, b"b")]


def test_data_of_large_skipped_item_is_not_read() -> None:
    large = bytes(8 * PART_BYTES)
    contents = WRITER + put(1, large) + X_ALONE + put(2, large) + put(3, b"c")
    reader = BytesReader(contents)
    read = read_once(reader, first_id=2, room=100)
    assert ([id_of(record) for record in read.records], reader.read_bytes < PART_BYTES) == ([3], True)


# Damage.


@pytest.mark.parametrize(
    "damage",
    [
        b"\x86" + i32(1 << 30) + i32(0) + i64(2) + i64(T) + b"data",
        put(2, b"data")[:-1],
        X_ALONE[:-1],
        with_data(14, b"data")[:-1],
        bytes(40),
        b"\xff" * 40,
    ],
    ids=["size behind the end", "an item cut short", "targets cut short", "another record cut short", "zeros", "ones"],
)
def test_changed_file_is_reported_as_damaged(damage: bytes) -> None:
    contents = WRITER + put(1, b"a") + damage
    with pytest.raises(DamagedScrollFile):
        read_all(contents)


def test_items_before_damage_are_read_if_they_fill_the_limit() -> None:
    contents = WRITER + put(1, b"a") + put(2, b"b") + b"\xff" * 40
    read = read_once(contents, most_items=1)
    assert (read.records, read.next_id) == ([put(1, b"a")], 2)


def test_offset_within_a_record_is_damage() -> None:
    contents = WRITER + put(1, b"\x86" * 60) + put(2, b"b")
    with pytest.raises(DamagedScrollFile):
        read_items(BytesReader(contents), 40, len(contents), 1, b"y", MANY, ROOM)
