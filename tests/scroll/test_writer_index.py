"""The index of a writer file, and what is looked up with it."""

from __future__ import annotations

import random

import pytest

from kestrel.disk.repair import TORN_RECORD, ReadEnd
from kestrel.disk.run_cursor import LARGE_RECORD_BYTES, SMALL_READ_BYTES
from kestrel.scroll import writer_file, writer_index
from kestrel.scroll.records import LARGEST_ID, Targets
from kestrel.scroll.writer_file import (
    MARK_BYTES,
    MAX_SINGLE_READERS,
    NO_ITEMS,
    Counts,
    WriterFile,
    WriterMark,
    WriterTally,
)
from kestrel.scroll.writer_index import HintMismatch, check_index, count_in_ranges, count_up_to, index_writer_file
from tests.journal.handwritten import BytesReader, i32, i64
from tests.scroll.handwritten import (
    ALL_BUT_X,
    WIDE_PUT,
    WRITER,
    X_ALONE,
    T,
    put,
    read_done,
    read_head,
    targets,
    with_data,
)


def indexed(contents: bytes, floor_id: int = 0) -> tuple[WriterFile, ReadEnd]:
    file = WriterFile(b"work.1", 1)
    return file, index_writer_file(BytesReader(contents), file, floor_id)


def known_of(file: WriterFile) -> tuple[object, ...]:
    """Return all that is known of a file except its marks."""
    tally = file.tally.items, file.tally.bytes, file.tally.extra
    return file.first_id, file.last_id, file.last_offset, file.size, file.is_closed, tally


def ends(contents: bytes) -> tuple[int, bool, bool]:
    """Return where the good part ends, whether there is a problem, and whether it is an unfinished record."""
    end = indexed(contents)[1]
    return end.offset, end.problem is not None, end.is_unfinished


# Counts.


def test_index_has_ids_last_offset_and_counts() -> None:
    file, end = indexed(WRITER + put(3, b"abc") + put(4, b"") + put(7, b"de", expiry_ms=T + 1))
    assert (file.first_id, file.last_id, file.last_offset, file.size) == (3, 7, 57, 92)
    assert (file.tally.of(b"x"), file.is_closed) == (Counts(3, 5), False)
    assert (end.offset, end.problem) == (92, None)


def test_item_for_one_reader_counts_for_no_other() -> None:
    file, _ = indexed(WRITER + put(1, b"all") + X_ALONE + put(2, b"only x") + put(3, b"all"))
    assert file.tally.of(b"x") == Counts(3, 12)
    assert file.tally.of(b"y") == file.tally.of(b":own") == Counts(2, 6)


def test_item_for_all_but_one_counts_for_all_others() -> None:
    file, _ = indexed(WRITER + ALL_BUT_X + put(1, b"not x"))
    assert file.tally.of(b"x") == NO_ITEMS
    assert file.tally.of(b"y") == Counts(1, 5)


def test_last_offset_is_that_of_the_targets() -> None:
    file, _ = indexed(WRITER + put(1, b"a") + X_ALONE + put(2, b"b"))
    assert file.last_offset == 4 + len(put(1, b"a"))


@pytest.mark.parametrize(
    "record",
    [read_head(9), read_done(9), with_data(14, b"?"), b"\x32????????", with_data(10, b""), with_data(12, b"\x07")],
    ids=["a head", "done ids", "data of another", "a header of another", "errors", "targets of another form"],
)
def test_other_records_do_not_count(record: bytes) -> None:
    file, end = indexed(WRITER + record + put(1, b"a") + record + put(2, b"b") + record)
    assert (file.first_id, file.last_id, file.tally.of(b"x"), end.problem) == (1, 2, Counts(2, 2), None)
    assert file.size == end.offset == 4 + 3 * len(record) + 52


@pytest.mark.parametrize("record", [read_head(9), with_data(14, b"?"), with_data(12, b"\x07")])
def test_targets_apply_only_to_the_next_record(record: bytes) -> None:
    file, end = indexed(WRITER + X_ALONE + record + put(1, b"a"))
    assert (file.tally.of(b"y"), file.tally.extra, end.problem) == (Counts(1, 1), {}, None)


def test_second_of_two_targets_counts() -> None:
    file, _ = indexed(WRITER + X_ALONE + targets(0, b"y") + put(1, b"a"))
    assert (file.tally.of(b"x"), file.tally.of(b"y")) == (NO_ITEMS, Counts(1, 1))


def test_item_with_wide_header_counts() -> None:
    file, end = indexed(WRITER + put(1, b"a") + WIDE_PUT + put(3, b"b"))
    assert (file.tally.of(b"x"), file.last_id, end.problem) == (Counts(3, 6), 3, None)


@pytest.mark.parametrize("odd", [1, 2, 0, -1, -(1 << 62)])
@pytest.mark.parametrize("before", [b"", X_ALONE], ids=["for all", "for one"])
def test_id_that_does_not_rise_is_damage(odd: int, before: bytes) -> None:
    good = WRITER + put(2, b"a")
    for record in (put(odd, b"again"), put(odd, b"again", expiry_ms=1), WIDE_PUT):
        file, end = indexed(good + before + record + put(3, b"b"))
        assert (file.first_id, file.last_id, file.tally.of(b"x"), file.size) == (2, 2, Counts(1, 1), len(good))
        assert (end.offset, end.is_unfinished) == (len(good), False)
        assert str(end.problem).endswith("is not higher than the one before it")


@pytest.mark.parametrize("odd", [0, -1, -(1 << 63)])
def test_item_below_first_id_does_not_count(odd: int) -> None:
    for record in (put(odd, b"odd"), put(odd, b"odd", expiry_ms=1), X_ALONE + put(odd, b"odd")):
        file, end = indexed(WRITER + record + put(3, b"b"))
        assert (file.first_id, file.last_id, file.tally.of(b"x"), end.problem) == (3, 3, Counts(1, 1), None)


def test_items_up_to_the_floor_do_not_count() -> None:
    contents = WRITER + b"".join(put(item_id, b"a") for item_id in range(1, 10))
    file, end = indexed(contents, floor_id=6)
    assert (file.first_id, file.last_id, file.tally.of(b"x"), end.offset) == (7, 9, Counts(3, 3), len(contents))
    assert file.before(7) == file.marks[0]
    assert file.marks[0].offset == 4 + 6 * 26


def test_file_of_old_items_has_none() -> None:
    file, end = indexed(WRITER + put(1, b"a") + put(2, b"b"), floor_id=2)
    assert (file.first_id, file.tally.of(b"x"), end.problem) == (0, NO_ITEMS, None)


def test_file_with_only_its_magic_has_no_item() -> None:
    file, end = indexed(WRITER)
    assert (file.first_id, file.size, end.offset, end.problem) == (0, 4, 4, None)


def test_indexing_continues_where_it_ended() -> None:
    rest = ALL_BUT_X + put(3, b"c") + put(4, b"d")
    contents = WRITER + put(1, b"a") + X_ALONE + put(2, b"b")
    file, _ = indexed(contents)
    index_writer_file(BytesReader(contents + rest), file)
    assert known_of(file) == known_of(indexed(contents + rest)[0])


def test_items_added_singly_give_the_index_of_a_whole_file() -> None:
    file, contents = WriterFile(b"work.1", 1), WRITER
    for item_id, targeted in enumerate([None, Targets(frozenset([b"x"]), False), Targets(frozenset([b"y"]), True)], 1):
        start = len(contents)
        if targeted is not None:
            contents += targets(targeted.are_left_out, *targeted.readers)
        contents += put(item_id, b"data")
        file.mark(item_id, start)
        file.add_item(item_id, start, 4, targeted)
        file.size = len(contents)
    again, _ = indexed(contents)
    assert known_of(file) == known_of(again)
    assert [mark[:2] for mark in file.marks] == [mark[:2] for mark in again.marks]


# Ends.

GOOD = WRITER + put(1, b"a")


@pytest.mark.parametrize(
    "last", [put(2, b"data"), put(2, b"data", expiry_ms=9), WIDE_PUT, X_ALONE + put(2, b"data"), with_data(14, b"?")]
)
def test_truncated_record_is_unfinished_at_its_start(last: bytes) -> None:
    for size in range(1, len(last)):
        assert ends(GOOD + last[:size]) == (len(GOOD), True, True)


@pytest.mark.parametrize("zeros", [1, 24, 25, 33, 100, 1000, (1 << 20) + 7])
def test_any_number_of_zeros_closes_the_file(zeros: int) -> None:
    file, end = indexed(GOOD + bytes(zeros))
    assert (end.offset, end.problem, file.size, file.is_closed) == (len(GOOD), None, len(GOOD), True)


def test_targets_before_zeros_are_not_kept() -> None:
    file, end = indexed(GOOD + X_ALONE + bytes(100))
    assert (end.offset, file.size, file.is_closed) == (len(GOOD), len(GOOD), False)
    assert (end.is_unfinished, end.problem) == (True, TORN_RECORD)


@pytest.mark.parametrize(
    "record",
    [b"\x86" + i32(-1) + i32(0) + i64(2) + i64(T), put(LARGEST_ID + 1, b"b"), with_data(9, b"1234567")],
    ids=["negative size", "id too large", "half an id"],
)
def test_damage_ends_the_file_and_earlier_items_count(record: bytes) -> None:
    for behind in (b"", put(3, b"c"), bytes(100)):
        file, end = indexed(GOOD + record + behind)
        assert (end.offset, end.problem is None, end.is_unfinished) == (len(GOOD), False, False)
        assert (file.last_id, file.tally.of(b"x"), file.size) == (1, Counts(1, 1), len(GOOD))


# Bytes read.


def test_data_of_large_items_is_not_read() -> None:
    sizes = [LARGE_RECORD_BYTES, 1 << 20, 5 << 20, 100_000, 3 << 20]
    contents = WRITER + b"".join(put(item_id, bytes(size)) for item_id, size in enumerate(sizes, 1))
    reader, file = BytesReader(contents), WriterFile(b"work.1", 1)
    end = index_writer_file(reader, file)
    assert (end.problem, file.tally.of(b"x")) == (None, Counts(5, sum(sizes)))
    assert reader.read_bytes <= (1 << 20) + 5 * SMALL_READ_BYTES + 4


def test_small_items_are_read_once() -> None:
    contents = WRITER + b"".join(put(item_id, bytes(100)) for item_id in range(1, 30_001))
    reader, file = BytesReader(contents), WriterFile(b"work.1", 1)
    index_writer_file(reader, file)
    assert file.tally.of(b"x") == Counts(30_000, 3_000_000)
    assert reader.read_bytes < len(contents) + 10_000


# Marks.


def many(rng: random.Random, items: int) -> bytes:
    """Return a file of items of all kinds, some only for `x`, and some for all others."""
    parts, item_id = [WRITER], 0
    for _ in range(items):
        item_id += rng.choice((1, 1, 1, 1, 5))
        parts += [rng.choice((b"", b"", b"", X_ALONE, ALL_BUT_X, with_data(14, b"?" * 30)))]
        sizes = (0, 10, 300, 300, 300, LARGE_RECORD_BYTES, 70_000) if rng.random() < 0.05 else (10, 90)
        data = bytes(rng.choice(sizes))
        parts += [put(item_id, data, expiry_ms=rng.choice((0, 9)))]
    return b"".join(parts)


def given(contents: bytes, target_reader: bytes) -> dict[int, int]:
    """Return the sizes of this reader's items by id, found without marks."""
    position, found, left_out = 4, {}, False
    while position < len(contents):
        size = int.from_bytes(contents[position + 1 : position + 5], "little")
        header = 1 + 4 * (contents[position] & 15)
        if contents[position] >> 4 == 8:
            item_id = int.from_bytes(contents[position + 9 : position + 17], "little")
            if not left_out:
                found[item_id] = size
        left_out = contents[position] >> 4 == 12 and (contents[position + header :][0] == 1) is (target_reader == b"x")
        position += header + size
    return found


def counted(found: dict[int, int], first: int, last: int) -> Counts:
    sizes = [size for item_id, size in found.items() if first <= item_id <= last]
    return Counts(len(sizes), sum(sizes))


def test_marks_are_close_enough_and_know_their_counts() -> None:
    contents = many(random.Random(1), 5000)
    file, end = indexed(contents)
    assert (end.problem, len(file.marks) > 5) == (None, True)
    for mark, following in zip(file.marks, [*file.marks[1:], None], strict=True):
        before, _ = indexed(contents[: mark.offset])
        assert (mark.before.items, mark.before.bytes, mark.before.extra) == (
            before.tally.items,
            before.tally.bytes,
            before.tally.extra,
        )
        if following is not None:
            assert following.offset - mark.offset >= MARK_BYTES


def test_small_items_have_a_mark_every_128_kib() -> None:
    contents = WRITER + b"".join(put(item_id, bytes(75)) for item_id in range(1, 20_001))
    file, _ = indexed(contents)
    gaps = [after.offset - mark.offset for mark, after in zip(file.marks, file.marks[1:], strict=False)]
    assert max(gaps) <= 2 * MARK_BYTES == 128 * 1024
    assert contents[file.marks[3].offset :].startswith(put(file.marks[3].item_id, bytes(75)))


@pytest.mark.parametrize("target_reader", [b"x", b"y"])
@pytest.mark.parametrize("seed", range(3))
def test_counts_up_to_an_item_start_at_the_nearest_mark(target_reader: bytes, seed: int) -> None:
    rng = random.Random(seed)
    contents = many(rng, 3000)
    file, _ = indexed(contents)
    found = given(contents, target_reader)
    assert file.tally.of(target_reader) == counted(found, 0, 1 << 62)
    for item_id in [0, 1, file.last_id - 1, file.last_id, file.last_id + 1, *rng.sample(range(file.last_id), 40)]:
        assert count_up_to(BytesReader(contents), file, target_reader, item_id) == counted(found, 0, item_id)
    for mark in file.marks:
        for item_id in (mark.item_id - 1, mark.item_id):
            assert count_up_to(BytesReader(contents), file, target_reader, item_id) == counted(found, 0, item_id)


def test_counts_are_right_for_many_single_readers() -> None:
    readers = MAX_SINGLE_READERS + 4
    contents = WRITER + put(1, bytes(100))  # for all; then a hundred for each reader alone, one reader after the other
    for item_id in range(2, 100 * readers + 2):
        contents += targets(0, b"r%d" % ((item_id - 2) // 100)) + put(item_id, bytes(100))
    file, _ = indexed(contents)
    assert {mark.before is None for mark in file.marks} == {False, True}
    assert all((mark.before is None) == ((mark.item_id - 3) // 100 + 1 > MAX_SINGLE_READERS) for mark in file.marks)
    for item_id in (1, 2, 101, 102, 1651, 100 * MAX_SINGLE_READERS + 150, 100 * readers):
        for reader in range(readers):
            items = 1 + min(100, max(0, item_id - 1 - 100 * reader))
            assert count_up_to(BytesReader(contents), file, b"r%d" % reader, item_id) == Counts(items, 100 * items)


def test_finding_an_item_reads_at_most_one_mark_interval() -> None:
    contents = WRITER + b"".join(put(item_id, bytes(75)) for item_id in range(1, 50_001))
    file, _ = indexed(contents)
    reader = BytesReader(contents)
    assert count_up_to(reader, file, b"x", 12_345) == Counts(12_345, 12_345 * 75)
    assert reader.read_bytes <= 2 * MARK_BYTES


def test_counts_before_and_after_a_file_need_no_reading() -> None:
    contents = WRITER + b"".join(put(item_id, bytes(75)) for item_id in range(11, 1001))
    file, _ = indexed(contents)
    reader = BytesReader(contents)
    assert count_up_to(reader, file, b"x", 10) == NO_ITEMS
    assert count_up_to(reader, file, b"x", 1000) == count_up_to(reader, file, b"x", 5000) == Counts(990, 990 * 75)
    assert reader.read_bytes == 0


def test_reading_starts_at_last_mark_before_the_item() -> None:
    file = WriterFile(b"work.1", 1)
    file.first_id = 5
    tally = WriterTally(1, 1)
    for item_id, offset in ((50, 5000), (10, 1000), (30, 3000), (30, 3000)):
        file.add_mark(WriterMark(item_id, offset, tally))
    assert [mark.item_id for mark in file.marks] == [10, 30, 50]
    looked_up = [file.before(item_id) for item_id in (9, 10, 29, 30, 49, 50, 99)]
    assert [mark.item_id for mark in looked_up] == [5, 10, 10, 30, 30, 50, 50]
    assert [mark.offset for mark in looked_up] == [4, 1000, 1000, 3000, 3000, 5000, 5000]


# A wrong index.


def test_file_that_matches_its_index_passes() -> None:
    contents = WRITER + put(1, b"a") + X_ALONE + put(2, b"b")
    file, _ = indexed(contents)
    check_index(BytesReader(contents), file)
    check_index(BytesReader(contents + put(3, b"c")), file)


@pytest.mark.parametrize(
    "contents",
    [
        GOOD + put(2, b"b")[:-1],
        GOOD,
        GOOD + put(3, b"b"),
        GOOD + put(2, b"bb"),
        WRITER + put(1, b"") + put(2, b"bb"),
        GOOD + bytes(26),
        GOOD + b"\xff" * 26,
        b"",
    ],
    ids=["shorter", "gone", "another id", "another size", "elsewhere", "zeros", "damage", "empty"],
)
def test_file_whose_last_item_differs_is_detected(contents: bytes) -> None:
    file, _ = indexed(GOOD + put(2, b"b"))
    with pytest.raises(HintMismatch):
        check_index(BytesReader(contents), file)


def test_closed_file_stays_closed_when_indexed_again() -> None:
    file, _ = indexed(GOOD)
    file.is_closed = True
    index_writer_file(BytesReader(GOOD), file)
    assert file.is_closed


@pytest.mark.parametrize("shift", [-1, 1, 13, 26, 5000, 1 << 40])
@pytest.mark.parametrize("how", ["to", "in"])
def test_wrong_offset_of_a_mark_is_detected(how: str, shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (writer_index, writer_file):
        monkeypatch.setattr(module, "MARK_BYTES", 100)
    contents = WRITER + b"".join(put(item_id, b"a") for item_id in range(1, 101))
    file, _ = indexed(contents)
    index = len(file.marks) // 2
    right = file.marks[index]
    file.marks[index] = WriterMark(right.item_id, right.offset + shift, right.before)
    with pytest.raises(HintMismatch):
        if how == "to":
            count_up_to(BytesReader(contents), file, b"x", right.item_id + 1)
        else:
            count_in_ranges(BytesReader(contents), file, b"x", [(right.item_id + 1, right.item_id + 1)])
