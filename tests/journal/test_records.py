"""Records: bytes to values and back, as the table of the format defines them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kestrel.disk.reader import DamagedRecord, UnfinishedRecord
from kestrel.journal.opcodes import Opcode
from kestrel.journal.records import (
    MAX_DATA_BYTES,
    REMOVE_RECORD,
    ItemDecoder,
    ItemEncoder,
    added_item,
    decode_item,
    decode_record,
    encode_confirm,
    encode_continue,
    encode_continued_item,
    encode_item,
    encode_open,
    encode_put_back,
)
from tests.journal.handwritten import (
    REMOVE,
    REMOVE_TENTATIVE,
    add,
    add_xid,
    addx,
    confirm,
    continue_,
    i32,
    i64,
    open_,
    save_xid,
    state_dump,
    unremove,
)

ADD_MS = 1_700_000_000_000
EXPIRY_MS = 1_700_000_060_000

# name: (record, opcode, xid, data, add ms, expiry ms)
RECORDS = {
    "ADD": (add(b"data"), 0, 0, b"data", None, 0),
    "ADD with an expiry": (add(b"data", 1_700_000_000), 0, 0, b"data", None, ADD_MS),
    "ADD without data": (add(b""), 0, 0, b"", None, 0),
    "REMOVE": (REMOVE, 1, 0, b"", None, 0),
    "ADDX": (addx(b"data", ADD_MS), 2, 0, b"data", ADD_MS, 0),
    "ADDX with an expiry": (addx(b"data", ADD_MS, EXPIRY_MS), 2, 0, b"data", ADD_MS, EXPIRY_MS),
    "ADDX without data": (addx(b"", ADD_MS), 2, 0, b"", ADD_MS, 0),
    "ADDX of every byte": (addx(bytes(range(256)), ADD_MS), 2, 0, bytes(range(256)), ADD_MS, 0),
    "REMOVE_TENTATIVE": (REMOVE_TENTATIVE, 3, 0, b"", None, 0),
    "SAVE_XID": (save_xid(7), 4, 7, b"", None, 0),
    "UNREMOVE": (unremove(7), 5, 7, b"", None, 0),
    "CONFIRM_REMOVE": (confirm(7), 6, 7, b"", None, 0),
    "ADD_XID": (add_xid(7, b"data", ADD_MS, EXPIRY_MS), 7, 7, b"data", ADD_MS, EXPIRY_MS),
    "CONTINUE": (continue_(7, b"data", ADD_MS, EXPIRY_MS), 8, 7, b"data", ADD_MS, EXPIRY_MS),
    "CONTINUE at the latest add time": (continue_(7, b"", 2**44 - 1), 8, 7, b"", 2**44 - 1, 0),
    "CONTINUE whose add time begins with a 7": (continue_(7, b"", ADD_MS | 7), 8, 7, b"", ADD_MS | 7, 0),
    "CONTINUE added at 7": (continue_(7, b"data", 7, EXPIRY_MS), 8, 7, b"data", 7, EXPIRY_MS),
    "REMOVE_TENTATIVE_XID": (open_(7), 9, 7, b"", None, 0),
    "the greatest xid": (open_(2**31 - 1), 9, 2**31 - 1, b"", None, 0),
    "a negative xid": (open_(-1), 9, -1, b"", None, 0),
}


@pytest.mark.parametrize(("record", "opcode", "xid", "data", "add_ms", "expiry_ms"), RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("offset", [0, 1, 100])
@pytest.mark.parametrize("behind", [b"", b"\x01", b"\xff" * 30], ids=["at the end", "before another", "before damage"])
def test_record_is_read_at_any_offset(
    record: bytes, opcode: int, xid: int, data: bytes, add_ms: int | None, expiry_ms: int, offset: int, behind: bytes
) -> None:
    decoded = decode_record(b"\xee" * offset + record + behind, offset)
    assert (decoded.size, decoded.restates) == (len(record), None)
    assert (decoded.opcode, decoded.xid, decoded.data, decoded.add_ms, decoded.expiry_ms) == (
        opcode,
        xid,
        data,
        add_ms,
        expiry_ms,
    )


@pytest.mark.parametrize("record", [row[0] for row in RECORDS.values()], ids=RECORDS)
def test_truncated_record_is_unfinished(record: bytes) -> None:
    for size in range(1, len(record)):
        with pytest.raises(UnfinishedRecord):
            decode_record(record[:size], 0)


@pytest.mark.parametrize("opcode", sorted({*range(256)} - {*Opcode}))
def test_unknown_opcode_is_damage(opcode: int) -> None:
    with pytest.raises(DamagedRecord, match=str(opcode)):
        decode_record(bytes([opcode]) + bytes(40), 0)


IMPOSSIBLE = {
    "ADD, negative": b"\x00" + i32(-1) + bytes(40),
    "ADD, less than its expiry": b"\x00" + i32(3) + bytes(40),
    "ADDX, negative": b"\x02" + i32(-1) + bytes(40),
    "ADDX, less than its times": b"\x02" + i32(15) + bytes(40),
    "ADDX, the most negative": b"\x02" + i32(-(2**31)) + bytes(40),
    "ADD_XID, negative": b"\x07" + i32(1) + i32(-1) + bytes(40),
    "ADD_XID, less than its times": b"\x07" + i32(1) + i32(15) + bytes(40),
}


@pytest.mark.parametrize("record", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_size_is_damage(record: bytes) -> None:
    with pytest.raises(DamagedRecord, match="size"):
        decode_record(record, 0)


@pytest.mark.parametrize("size", [2**31 - 1, 1_000_000])
def test_size_beyond_the_end_is_unfinished_and_takes_no_memory(size: int) -> None:
    with pytest.raises(UnfinishedRecord):
        decode_record(b"\x02" + i32(size) + bytes(40), 0)


# Opcode 8 has two meanings.


RESTATED = add_xid(3, b"data", ADD_MS)

# name: (record, xid, number of restated open reads)
STATE_DUMPS = {
    "of nothing": (state_dump(7), 7, 0),
    "of one open read": (state_dump(7, RESTATED), 7, 1),
    "of items of different sizes": (state_dump(7, RESTATED, add_xid(4, b""), add_xid(-5, bytes(range(256)))), 7, 3),
    "of 15": (state_dump(7, *[RESTATED] * 15), 7, 15),
    "of 16": (state_dump(7, *[RESTATED] * 16), 7, 16),
    "of 300": (state_dump(7, *[RESTATED] * 300), 7, 300),
    "with the greatest xid": (state_dump(2**31 - 1, RESTATED), 2**31 - 1, 1),
}


@pytest.mark.parametrize(("record", "xid", "restates"), STATE_DUMPS.values(), ids=STATE_DUMPS)
@pytest.mark.parametrize("offset", [0, 1, 100])
def test_state_dump_extends_to_the_end_of_its_file(record: bytes, xid: int, restates: int, offset: int) -> None:
    decoded = decode_record(b"\xee" * offset + record, offset)
    assert (decoded.opcode, decoded.name, decoded.xid, decoded.restates) == (8, "STATE_DUMP", xid, restates)
    assert decoded.size == len(record)


@pytest.mark.parametrize("count", [1, 2, 15])
def test_truncated_state_dump_is_unfinished(count: int) -> None:
    record = state_dump(7, *[RESTATED] * count)
    for size in range(1, len(record)):
        with pytest.raises(UnfinishedRecord):
            decode_record(record[:size], 0)


@pytest.mark.parametrize("count", [16, 20])
def test_truncated_state_dump_of_16_or_more_is_invalid(count: int) -> None:
    record = state_dump(7, *[RESTATED] * count)
    for size in range(1, len(record)):
        with pytest.raises((UnfinishedRecord, DamagedRecord)):
            decode_record(record[:size], 0)


NO_STATE_DUMPS = {
    "nothing is restated, and an item follows": state_dump(7) + addx(b"data"),
    "one read is restated, and a REMOVE follows": state_dump(7, RESTATED) + REMOVE,
    "more restated reads than the count": state_dump(7, RESTATED, RESTATED, count=1),
    "an ADDX is restated": state_dump(7, addx(b"data"), count=1),
    "each ADD_XID is opened": state_dump(7, RESTATED, REMOVE_TENTATIVE, RESTATED, REMOVE_TENTATIVE, count=2),
    "restated read of impossible size": state_dump(7, b"\x07" + i32(3) + i32(15) + bytes(40), count=1),
    "-1 reads are restated": state_dump(7, count=-1),
    "-1 reads are restated, and one is": state_dump(7, RESTATED, count=-1),
    "negative count of restated reads": state_dump(7, RESTATED, count=-(2**31)),
}


@pytest.mark.parametrize("record", NO_STATE_DUMPS.values(), ids=NO_STATE_DUMPS)
def test_opcode_8_below_16_without_matching_add_xids_is_damage(record: bytes) -> None:
    with pytest.raises(DamagedRecord):
        decode_record(record, 0)


@pytest.mark.parametrize("add_ms", [2**44, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("behind", [b"", REMOVE, RESTATED * 20])
def test_opcode_8_with_bad_add_time_is_damage(add_ms: int, behind: bytes) -> None:
    with pytest.raises(DamagedRecord):
        decode_record(continue_(1, b"data", add_ms) + behind, 0)


@pytest.mark.parametrize("count", [16, 17, 100])
@pytest.mark.parametrize("behind", [REMOVE, RESTATED], ids=["a REMOVE", "another ADD_XID"])
def test_long_state_dump_with_trailing_data_is_damage(count: int, behind: bytes) -> None:
    with pytest.raises(DamagedRecord):
        decode_record(state_dump(7, *[RESTATED] * count) + behind, 0)


BOTH = state_dump(5, add_xid(1, bytes(2**24 - 16), 3 << 8, 9), *[RESTATED] * 15)
"""A STATE_DUMP of 16 that is also a valid CONTINUE, which needs a very large first item."""


def test_ambiguous_record_is_state_dump_if_add_xids_end_file() -> None:
    decoded = decode_record(BOTH, 0)
    assert (decoded.name, decoded.xid, decoded.restates, decoded.size) == ("STATE_DUMP", 5, 16, len(BOTH))


@pytest.mark.parametrize(
    "contents", [BOTH + REMOVE, BOTH[:-1], BOTH[:25]], ids=["trailing data", "cut short", "only the header"]
)
def test_ambiguous_record_is_continue_if_anything_else_follows(contents: bytes) -> None:
    decoded = decode_record(contents, 0)
    assert (decoded.name, decoded.xid, decoded.restates, decoded.size) == ("CONTINUE", 5, None, 25)
    assert (decoded.data, decoded.add_ms) == (b"", 7 + (1 << 8))
    assert decoded.expiry_ms == 1 + (3 << 16)


some_ms = st.integers(-(2**63), 2**63 - 1)


def test_records_are_encoded_as_in_kestrel_2_1() -> None:
    assert encode_item(b"data", ADD_MS, EXPIRY_MS) == b"\x02" + i32(20) + i64(ADD_MS) + i64(EXPIRY_MS) + b"data"
    assert REMOVE_RECORD == b"\x01"
    assert encode_open(7) == b"\x09" + i32(7)
    assert encode_confirm(7) == b"\x06" + i32(7)
    assert encode_put_back(7) == b"\x05" + i32(7)
    assert encode_put_back(7, errors=0) == b"\x04" + i32(0) + b"\x05" + i32(7)
    assert encode_put_back(7, errors=2**31 - 1) == b"\x04" + i32(2**31 - 1) + b"\x05" + i32(7)
    item = encode_continued_item(b"data", ADD_MS, EXPIRY_MS)
    assert encode_continue(7, item) == b"\x08" + i32(7) + i32(20) + i64(ADD_MS) + i64(EXPIRY_MS) + b"data"


@pytest.mark.parametrize("data", [b"", b"\x07" * 100])
def test_encoded_continue_is_never_read_as_state_dump(data: bytes) -> None:
    # read as an ADD_XID: of the size 2^24 + 1, from the second byte of the expiry on
    add_ms, expiry_ms = 7 | 1 << 40, 1
    behind = bytes(2**24 + 1 - 7 - len(data)) + RESTATED * (15 + len(data))
    plain = encode_continue(7, encode_item(data, add_ms, expiry_ms)) + behind
    assert decode_record(plain, 0).name == "STATE_DUMP"
    ours = encode_continue(7, encode_continued_item(data, add_ms, expiry_ms)) + behind
    decoded = decode_record(ours, 0)
    assert (decoded.name, decoded.xid, decoded.data) == ("CONTINUE", 7, data)
    assert (decoded.add_ms, decoded.expiry_ms) == (add_ms + 1, expiry_ms)


@given(data=st.binary(), add_ms=some_ms, expiry_ms=some_ms)
def test_item_survives_a_continue_except_for_extreme_times(data: bytes, add_ms: int, expiry_ms: int) -> None:
    item = encode_continued_item(data, add_ms, expiry_ms)
    record = encode_continue(7, item)
    decoded = decode_record(record + b"\xff", 0)
    assert (decoded.name, decoded.xid, decoded.data, decoded.size) == ("CONTINUE", 7, data, len(record))
    assert (decoded.add_ms, decoded.expiry_ms) == (decode_item(item).add_ms, expiry_ms)
    assert 0 <= decode_item(item).add_ms - min(max(add_ms, 0), 2**44 - 1) <= 1
    assert added_item(record) == item


def test_added_item_is_extracted_from_its_record() -> None:
    item = encode_item(b"data", ADD_MS, EXPIRY_MS)
    assert added_item(item) is item
    for record in (REMOVE_RECORD, encode_open(7), encode_confirm(7), encode_put_back(7)):
        assert added_item(record) is None


def test_largest_item_fills_the_size_field() -> None:
    assert 16 + MAX_DATA_BYTES == 2**31 - 1


@given(data=st.binary(), add_ms=some_ms, expiry_ms=some_ms)
def test_item_survives_a_round_trip(data: bytes, add_ms: int, expiry_ms: int) -> None:
    record = encode_item(data, add_ms, expiry_ms)
    item, decoded = decode_item(record), decode_record(record, 0)
    assert (item.data, item.add_ms, item.expiry_ms, item.errors, item.xid) == (data, add_ms, expiry_ms, 0, 0)
    assert (decoded.data, decoded.add_ms, decoded.expiry_ms, decoded.size) == (data, add_ms, expiry_ms, len(record))


@given(contents=st.binary(min_size=1, max_size=60))
def test_any_bytes_are_a_record_or_an_error(contents: bytes) -> None:
    try:
        record = decode_record(contents, 0)
    except (DamagedRecord, UnfinishedRecord):
        return
    assert 0 < record.size <= len(contents)


TIMES = st.sampled_from([0, ADD_MS, EXPIRY_MS])


@given(st.lists(st.tuples(st.sampled_from([b"", b"data", b"DATA", b"other"]), TIMES, TIMES)))
def test_consecutive_items_are_coded_like_single_ones(items: list[tuple[bytes, int, int]]) -> None:
    encoder, decoder = ItemEncoder(), ItemDecoder()
    for data, add_ms, expiry_ms in items:
        record = encoder.encode(data, add_ms, expiry_ms)
        assert record == encode_item(data, add_ms, expiry_ms)
        item = decoder.decode(record)
        assert (item.data, item.add_ms, item.expiry_ms, item.xid) == (data, add_ms, expiry_ms, 0)


def test_announced_record_keeps_its_xid_when_decoded_after_others() -> None:
    decoder = ItemDecoder()
    decoder.decode(encode_item(b"data", ADD_MS, 0))
    announced = decode_record(add_xid(7, b"data", ADD_MS), 0).item_record(ADD_MS)
    assert decoder.decode(announced).xid == 7
