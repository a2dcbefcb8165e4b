"""Records: bytes to values and back, as the table of the format defines them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from kestrel.disk.reader import DamagedRecord, UnfinishedRecord
from kestrel.scroll import records
from kestrel.scroll.records import (
    DELETED_RECORD,
    LARGEST_ID,
    MAX_DATA_BYTES,
    MAX_IDS_PER_RECORD,
    PUT_BYTES,
    PUT_EXPIRING_BYTES,
    RecordCommand,
    ScrollFileRecord,
    Targets,
    data_bytes,
    decode_put,
    decode_record,
    encode_done_ranges,
    encode_errors,
    encode_put,
    encode_read_done,
    encode_read_head,
    encode_targets,
    id_of,
)
from tests.journal.handwritten import i32, i64
from tests.scroll.handwritten import DELETED, T, done_ranges, errors, put, read_done, read_head, targets, with_data

IDS = st.integers(1, LARGEST_ID)
TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
COUNTS = st.integers(0, (1 << 31) - 1)
READERS = st.frozensets(st.binary(max_size=255), max_size=5)

ONLY_X = Targets(frozenset([b"x"]), False)
ALL_BUT_X = Targets(frozenset([b"x"]), True)

# name: (hand-written bytes, encoded bytes)
RECORDS = {
    "READ_HEAD": (read_head(7), encode_read_head(7)),
    "PUT": (put(7, b"data"), encode_put(7, b"data", T, 0)),
    "PUT that expires": (put(7, b"data", T, T + 1), encode_put(7, b"data", T, T + 1)),
    "PUT with errors": (put(7, b"data", errors=3), encode_put(7, b"data", T, 0, 3)),
    "PUT without data": (put(7, b""), encode_put(7, b"", T, 0)),
    "READ_DONE": (read_done(7, 9), encode_read_done([7, 9])),
    "READ_DONE of none": (read_done(), encode_read_done([])),
    "ERRORS": (errors(_7=1, _9=2), encode_errors({7: 1, 9: 2})),
    "DONE_RANGES": (done_ranges((7, 9), (11, 99)), encode_done_ranges([(7, 9), (11, 99)])),
    "TARGETS": (targets(0, b"x", b"yy"), encode_targets(Targets(frozenset([b"yy", b"x"]), False))),
    "TARGETS left out": (targets(1, b"x"), encode_targets(ALL_BUT_X)),
    "TARGETS of none": (targets(0), encode_targets(Targets(frozenset(), False))),
    "DELETED": (DELETED, DELETED_RECORD),
}
EACH = pytest.mark.parametrize("name", RECORDS)


def decoded(data: bytes, position: int = 0) -> ScrollFileRecord:
    record = decode_record(data, position)
    assert record is not None
    return record


@EACH
def test_record_is_written_as_the_format_defines(name: str) -> None:
    by_hand, encoded = RECORDS[name]
    assert encoded == by_hand


@EACH
def test_record_is_read_at_any_offset(name: str) -> None:
    raw, _ = RECORDS[name]
    for before, behind in ((b"", b""), (b"before", b""), (b"", b"\x86 and more"), (b"1", b"2")):
        record = decoded(before + raw + behind, len(before))
        assert (record.name, record.size, record.raw) == (name.split()[0], len(raw), raw)
        assert record.command == RecordCommand[record.name]


@EACH
def test_truncated_record_reports_the_bytes_it_needs(name: str) -> None:
    raw, _ = RECORDS[name]
    for size in range(1, len(raw)):
        with pytest.raises(UnfinishedRecord) as unfinished:
            decode_record(raw[:size], 0)
        assert size < unfinished.value.needs <= len(raw)


@given(IDS, st.binary(), TIMES, TIMES, COUNTS)
@example(LARGEST_ID, b"", 0, 0, 0)
def test_item_survives_a_round_trip(item_id: int, data: bytes, add_ms: int, expiry_ms: int, errors: int) -> None:
    raw = encode_put(item_id, data, add_ms, expiry_ms, errors)
    assert len(raw) == len(data) + (PUT_EXPIRING_BYTES if expiry_ms else PUT_BYTES)
    item = decode_put(raw)
    assert (item.id, item.data, item.add_ms, item.expiry_ms) == (item_id, data, add_ms, expiry_ms)
    assert (item.errors, item.xid) == (errors, 0)
    assert (id_of(raw), data_bytes(raw)) == (item_id, len(data))
    record = decoded(raw)
    assert (record.item_id, record.data, record.data_size) == (item_id, data, len(data))


@pytest.mark.parametrize(
    ("words", "expiry_ms"), [(6, 0), (8, T + 1), (9, T + 1), (15, T + 1)], ids=lambda each: str(each)
)
def test_unknown_header_words_are_skipped(words: int, expiry_ms: int) -> None:
    header = (put(7, b"", T, T + 1, 2)[1:] + b"?" * 28)[: 4 * words]
    raw = bytes([0x80 | words]) + i32(4) + header[4:] + b"data"
    assert decoded(raw).raw == raw
    item = decode_put(decoded(raw + b"more").raw)
    assert (item.id, item.data, item.add_ms, item.expiry_ms, item.errors) == (7, b"data", T, expiry_ms, 2)


def test_written_expiry_of_0_means_never() -> None:
    assert decode_put(b"\x88" + i32(0) + i32(0) + i64(7) + i64(T) + i64(0)).expiry_ms == 0


def test_other_records_may_have_more_header_words() -> None:
    assert decoded(b"\x04" + i64(7) + b"????????").item_id == 7
    record = decoded(b"\x93" + i32(8) + b"????????" + i64(7) + b"more")
    assert (list(record.ids), record.size) == ([7], 21)


# name: (bytes, size)
UNKNOWN = {
    "without data": (b"\x32????????", 9),
    "without a header": (b"\x10", 1),
    "of another command without data": (b"\x71????", 5),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_record_has_a_size_and_can_be_skipped(name: str) -> None:
    raw, size = UNKNOWN[name]
    record = decoded(raw + b"more")
    assert (record.name, record.size, record.item_id) == ("UNKNOWN", size, 0)


DAMAGED = {
    "a negative size": with_data(8, b"")[:1] + i32(-1),
    "a READ_DONE of half an id": with_data(9, b"1234"),
    "an ERRORS of an id without a count": with_data(10, i64(7)),
    "a DONE_RANGES of half a range": with_data(11, i64(7)),
    "a negative size of a PUT": b"\x86" + i32(-1) + put(7, b"data")[5:],
    "a size above the largest": b"\x86" + i32(MAX_DATA_BYTES + 1) + put(7, b"")[5:],
    "a negative size of an unknown record": b"\xf1" + i32(-1),
    "an unknown record of a size above the largest": b"\xf1" + i32(MAX_DATA_BYTES + 1),
    "a PUT with a header too short": b"\x85" + put(7, b"data")[1:],
    "a PUT whose header ends within its expiry": b"\x87" + put(7, b"data", expiry_ms=T)[1:],
    "data without a header": b"\x90" + read_done(7)[1:],
    "a READ_HEAD without its id": b"\x01" + i32(7),
    "an id of a PUT above the largest": put(LARGEST_ID + 1, b"data"),
    "a head above the largest id": read_head(LARGEST_ID + 1),
    "a hold above the largest id": with_data(14, i64(LARGEST_ID + 1) + b"spark"),
    "a done id above the largest": read_done(7, LARGEST_ID + 1),
    "a range that ends above the largest id": done_ranges((7, LARGEST_ID + 1)),
    "a range that begins above the largest id": done_ranges((LARGEST_ID + 1, 7)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_invalid_record_is_damage(name: str) -> None:
    with pytest.raises(DamagedRecord):
        decode_record(DAMAGED[name] + bytes(64), 0)


def test_largest_id_is_valid() -> None:
    for raw in (put(LARGEST_ID, b""), read_head(LARGEST_ID), read_done(LARGEST_ID), done_ranges((1, LARGEST_ID))):
        assert decoded(raw).size == len(raw)


def test_zero_byte_is_the_end() -> None:
    assert decode_record(bytes(4), 0) is None
    assert decode_record(put(7, b"") + b"\0", 25) is None


@given(st.binary(min_size=1, max_size=80))
@example(b"\x86" + i32(MAX_DATA_BYTES))
@example(with_data(12, b"\0\xff"))
def test_any_bytes_are_record_end_unfinished_or_damage(data: bytes) -> None:
    try:
        record = decode_record(data, 0)
    except UnfinishedRecord as unfinished:
        assert unfinished.needs > len(data)
    except DamagedRecord as damage:
        assert str(damage)
    else:
        assert record is None or 0 < record.size <= len(data)
        if record is not None and record.command == RecordCommand.TARGETS:
            assert record.targets is None or encode_targets(record.targets)


class RecordingFile:
    """A file whose beginning is in a buffer; it records what was read beyond."""

    def __init__(self, contents: bytes) -> None:
        self._contents = contents
        self.length = len(contents)
        self.reads: list[tuple[int, int]] = []

    def read_at(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        return self._contents[offset : offset + size]


@EACH
def test_record_longer_than_buffer_is_read_from_the_file(name: str) -> None:
    raw, _ = RECORDS[name]
    contents = b"before" + raw + b"behind"
    for size in range(1, len(raw)):
        record = decode_record(contents[: 6 + size], 6, RecordingFile(contents))
        assert record is not None
        assert (record.raw, record.size, record.item_id) == (raw, len(raw), decoded(raw).item_id)
        assert record.data == decoded(raw).data


@pytest.mark.parametrize("size", [-1, MAX_DATA_BYTES + 1, 1 << 30, 1000])
def test_impossible_or_missing_size_reads_nothing(size: int) -> None:
    whole = RecordingFile(b"\x86" + i32(size) + put(7, b"data")[5:])
    with pytest.raises((UnfinishedRecord, DamagedRecord)):
        decode_record(b"\x86", 0, whole)
    assert all(size <= 4 for _, size in whole.reads)


def test_many_ids_are_split_into_more_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_IDS_PER_RECORD", 2)
    assert encode_read_done([1, 2, 3, 4, 5]) == read_done(1, 2) + read_done(3, 4) + read_done(5)
    assert encode_read_done([1, 2]) == read_done(1, 2)
    ranges = [(1, 2), (4, 5), (7, 8)]
    assert encode_done_ranges(ranges) == done_ranges(*ranges[:2]) + done_ranges(ranges[2])
    assert encode_errors({1: 1, 2: 2, 3: 3}) == errors(_1=1, _2=2) + errors(_3=3)


def test_largest_number_of_ids_fits_a_record() -> None:
    assert MAX_IDS_PER_RECORD * 16 <= MAX_DATA_BYTES
    assert len(decoded(encode_read_done(range(1, MAX_IDS_PER_RECORD + 1))).ids) == MAX_IDS_PER_RECORD


def test_no_ranges_and_no_errors_make_no_record() -> None:
    assert encode_done_ranges([]) == encode_errors({}) == b""


@given(st.lists(IDS), st.lists(st.tuples(IDS, IDS)), st.dictionaries(IDS, COUNTS))
def test_reader_records_survive_a_round_trip(
    ids: list[int], ranges: list[tuple[int, int]], counts: dict[int, int]
) -> None:
    assert list(decoded(encode_read_done(ids)).ids) == ids
    if ranges:
        assert list(decoded(encode_done_ranges(ranges)).ranges) == ranges
    if counts:
        assert decoded(encode_errors(counts)).errors == counts


def test_last_count_of_an_id_counts_unless_negative() -> None:
    assert decoded(errors(_7=2, _9=-1) + b"").errors == {7: 2}
    assert decoded(with_data(10, (i64(7) + i32(1)) + (i64(7) + i32(2)))).errors == {7: 2}


# Targets.


@given(READERS, st.booleans())
def test_targets_survive_a_round_trip(readers: frozenset[bytes], are_left_out: bool) -> None:
    written = Targets(readers, are_left_out)
    assert decoded(encode_targets(written)).targets == written


def test_names_of_targets_are_sorted() -> None:
    names = [b"", b":own", b"a", b"aa", b"b", b"c", b"d", b"z" * 40]
    assert encode_targets(Targets(frozenset(reversed(names)), False)) == targets(0, *names)


def test_item_is_for_named_readers_or_for_all_others() -> None:
    assert [ONLY_X.has(b"x"), ONLY_X.has(b"y")] == [True, False]
    assert [ALL_BUT_X.has(b"x"), ALL_BUT_X.has(b"y")] == [False, True]


@pytest.mark.parametrize("data", [b"", b"\x02\x01x", b"abc", b"\x00\x02x", b"\x01\x01x\x05"])
def test_invalid_targets_are_a_foreign_record(data: bytes) -> None:
    record = decoded(with_data(12, data))
    assert (record.targets, record.size) == (None, 5 + len(data))
