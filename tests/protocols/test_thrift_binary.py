"""Thrift's binary protocol: the bytes of each value, and checks of every length and count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.thrift_binary import BadThrift, MessageHeader, ThriftReader, TruncatedThrift
from tests.costs import Work, peak_bytes

VALUES: list[tuple[Callable[[ThriftReader], Any], bytes, Any]] = [
    (ThriftReader.byte, b"\x7f", 127),
    (ThriftReader.byte, b"\xff", -1),
    (ThriftReader.i16, b"\x01\x02", 258),
    (ThriftReader.i16, b"\xff\xfe", -2),
    (ThriftReader.i32, b"\x00\x01\x00\x00", 65536),
    (ThriftReader.i32, b"\x80\x00\x00\x00", -(1 << 31)),
    (ThriftReader.i64, b"\x00\x00\x00\x01\x00\x00\x00\x00", 1 << 32),
    (ThriftReader.i64, b"\xff" * 8, -1),
    (ThriftReader.binary, b"\x00\x00\x00\x00", b""),
    (ThriftReader.binary, b"\x00\x00\x00\x03\x00\xff\x80", b"\x00\xff\x80"),
    (ThriftReader.field, b"\x00", (binary.STOP, 0)),
    (ThriftReader.field, b"\x0b\x00\x01", (binary.STRING, 1)),
    (ThriftReader.field, b"\x08\xff\xff", (binary.I32, -1)),
    (ThriftReader.list_header, b"\x0b\x00\x00\x00\x00", (binary.STRING, 0)),
    (ThriftReader.list_header, b"\x00\x00\x00\x00\x00", (binary.STOP, 0)),
    (ThriftReader.map_header, b"\x0b\x08\x00\x00\x00\x00", (binary.STRING, binary.I32, 0)),
    (ThriftReader.map_header, b"\x00\x00\x00\x00\x00\x00", (binary.STOP, binary.STOP, 0)),
    (
        ThriftReader.header,
        b"\x80\x01\x00\x01\x00\x00\x00\x03put\x00\x00\x00\x07",
        MessageHeader(b"put", binary.CALL, 7, True),
    ),
    (
        ThriftReader.header,
        b"\x80\x01\x00\x04\x00\x00\x00\x00\xff\xff\xff\xff",
        MessageHeader(b"", binary.ONEWAY, -1, True),
    ),
    (
        ThriftReader.header,
        b"\x00\x00\x00\x03get\x02\x7f\xff\xff\xff",
        MessageHeader(b"get", binary.REPLY, (1 << 31) - 1, False),
    ),
]


@pytest.mark.parametrize(("read", "data", "value"), VALUES)
def test_value_is_read_and_nothing_behind_it(read: Callable[[ThriftReader], Any], data: bytes, value: Any) -> None:
    reader = ThriftReader(data + b"behind")
    assert read(reader) == value
    assert reader.remaining_bytes == len(b"behind")


@pytest.mark.parametrize(("read", "data", "value"), VALUES)
def test_truncated_value_differs_from_a_bad_one(read: Callable[[ThriftReader], Any], data: bytes, value: Any) -> None:
    for size in range(len(data)):
        with pytest.raises(TruncatedThrift):
            read(ThriftReader(data[:size]))


def test_elements_are_read_behind_their_header() -> None:
    binaries = b"\x0b\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x00"
    reader = ThriftReader(binaries + b"\x0a\x00\x00\x00\x02" + b"\xff" * 8 + bytes(8))
    assert reader.list_header() == (binary.STRING, 2)
    assert reader.binaries(2) == [b"a", b""]
    assert reader.list_header() == (binary.I64, 2)
    assert list(reader.i64s(2)) == [-1, 0]
    assert reader.remaining_bytes == 0


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (ThriftReader.binary, b"\xff\xff\xff\xff"),
        (ThriftReader.header, b"\x80\x02\x00\x01\x00\x00\x00\x03put\x00\x00\x00\x07"),
        (ThriftReader.header, b"\xff\xff\xff\xff"),
        (ThriftReader.header, b"\x80\x01\x00\x01\xff\xff\xff\xff"),
        (ThriftReader.header, b"\x80\x01\x00\x01\x00\x00\x00\x65"),
        (ThriftReader.header, b"\x00\x00\x00\x65"),
        (ThriftReader.list_header, b"\x0b\xff\xff\xff\xff"),
        (ThriftReader.list_header, b"\x00\x00\x00\x00\x01" + bytes(10)),
        (ThriftReader.list_header, b"\x09\x00\x00\x00\x01" + bytes(10)),
        (ThriftReader.map_header, b"\x08\x08\x80\x00\x00\x00"),
        (ThriftReader.map_header, b"\x08\x01\x00\x00\x00\x01" + bytes(10)),
    ],
    ids=[
        "negative length",
        "version 2",
        "version -1",
        "strict name of negative length",
        "strict name too long",
        "name too long",
        "negative count",
        "elements without a type",
        "elements of no known type",
        "negative count of pairs",
        "values of no known type",
    ],
)
def test_invalid_value_is_bad_whatever_follows(read: Callable[[ThriftReader], Any], data: bytes) -> None:
    with pytest.raises(BadThrift) as raised:
        read(ThriftReader(data))
    assert not isinstance(raised.value, TruncatedThrift)
    assert str(raised.value)


def test_name_at_the_limit_makes_the_longest_header() -> None:
    headers = {is_strict: binary.header(b"n" * 100, binary.CALL, 1, is_strict) for is_strict in (True, False)}
    for is_strict, data in headers.items():
        assert ThriftReader(data).header() == (b"n" * 100, binary.CALL, 1, is_strict)
    assert max(map(len, headers.values())) == binary.MAX_HEADER_BYTES


# Skipping.

WHOLE: list[tuple[int, bytes]] = [
    (binary.BOOL, b"\x01"),
    (binary.BYTE, b"\x01"),
    (binary.DOUBLE, bytes(8)),
    (binary.I16, bytes(2)),
    (binary.I32, bytes(4)),
    (binary.I64, bytes(8)),
    (binary.UUID, bytes(16)),
    (binary.STRING, b"\x00\x00\x00\x02ab"),
    (binary.STRUCT, b"\x00"),
    (binary.STRUCT, b"\x08\x00\x01\x00\x00\x00\x07\x0c\x00\x02\x00\x00"),
    (binary.LIST, b"\x00\x00\x00\x00\x00"),
    (binary.LIST, b"\x08\x00\x00\x00\x02" + bytes(8)),
    (binary.LIST, b"\x0c\x00\x00\x00\x02\x00\x02\x00\x01\x01\x00"),
    (binary.SET, b"\x0b\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x00"),
    (binary.SET, b"\x0f\x00\x00\x00\x01\x06\x00\x00\x00\x01\x00\x07"),
    (binary.MAP, bytes(6)),
    (binary.MAP, b"\x02\x06\x00\x00\x00\x02" + bytes(6)),
    (binary.MAP, b"\x0b\x08\x00\x00\x00\x01\x00\x00\x00\x01k\x00\x00\x00\x09"),
    (binary.MAP, b"\x08\x0d\x00\x00\x00\x01\x00\x00\x00\x01" + bytes(6)),
]


@pytest.mark.parametrize(("type_", "data"), WHOLE)
def test_value_is_skipped_to_its_last_byte(type_: int, data: bytes) -> None:
    reader = ThriftReader(data + b"behind")
    reader.skip(type_)
    assert reader.remaining_bytes == len(b"behind")


@pytest.mark.parametrize(("type_", "data"), WHOLE)
def test_truncated_value_cannot_be_skipped(type_: int, data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(TruncatedThrift):
            ThriftReader(data[:size]).skip(type_)


@pytest.mark.parametrize("type_", [-1, 0, 1, 5, 7, 9, 17, 127])
def test_value_of_unknown_type_cannot_be_skipped(type_: int) -> None:
    with pytest.raises(BadThrift, match=f"{type_} is not the number of a type"):
        ThriftReader(bytes(100)).skip(type_)


def test_string_of_negative_length_cannot_be_skipped() -> None:
    with pytest.raises(BadThrift, match="negative"):
        ThriftReader(b"\xff\xff\xff\xff").skip(binary.STRING)


NESTED: list[tuple[int, bytes, bytes]] = [
    # type, bytes before each level, innermost value
    (binary.LIST, b"\x0f\x00\x00\x00\x01", b"\x08\x00\x00\x00\x00"),
    (binary.SET, b"\x0e\x00\x00\x00\x01", b"\x08\x00\x00\x00\x00"),
    (binary.MAP, b"\x02\x0d\x00\x00\x00\x01\x01", b"\x08\x08\x00\x00\x00\x00"),
    (binary.STRUCT, b"\x0c\x00\x01", b"\x00"),
]


@pytest.mark.parametrize(("type_", "level", "innermost"), NESTED)
def test_nesting_is_skipped_to_sixty_four_levels(type_: int, level: bytes, innermost: bytes) -> None:
    def skip(levels: int) -> int:
        ends = levels - 1 if type_ == binary.STRUCT else 0
        reader = ThriftReader(level * (levels - 1) + innermost + b"\x00" * ends)
        reader.skip(type_)
        return reader.remaining_bytes

    assert skip(64) == 0
    with pytest.raises(BadThrift, match="nested too deeply; limit=64"):
        skip(65)
    with pytest.raises(BadThrift, match="nested too deeply; limit=64"):
        skip(100_000)


def test_values_of_fixed_size_are_skipped_together() -> None:
    reader = ThriftReader(b"\x02\x00\x10\x00\x00" + bytes(1 << 20) + b"\x06\x02\x00\x10\x00\x00" + bytes(3 << 20))
    reader.skip(binary.LIST)
    reader.skip(binary.MAP)
    assert reader.remaining_bytes == 0


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        (binary.LIST, b"\x0c\x00\x10\x00\x00" + bytes(1 << 20)),
        (binary.SET, b"\x0b\x00\x10\x00\x00" + bytes(4 << 20)),
        (binary.STRUCT, b"\x02\x00\x01\x00" * (1 << 20) + b"\x00"),
    ],
    ids=["empty structs", "empty strings", "fields"],
)
def test_skipping_stops_when_it_takes_too_long(type_: int, data: bytes) -> None:
    reader = ThriftReader(data)
    with pytest.raises(BadThrift, match="too many unknown values; limit=10000"):
        reader.skip(type_)
    assert reader.remaining_bytes > len(data) - 50_000


def test_skipped_values_are_counted_over_the_whole_frame() -> None:
    reader = ThriftReader(bytes(10_001))
    for _ in range(10_000):
        reader.skip(binary.BOOL)
    with pytest.raises(BadThrift, match="too many unknown values"):
        reader.skip(binary.BOOL)


# Claimed sizes.

HUGE = b"\x7f\xff\xff\xff"

CLAIMS: list[tuple[Callable[[ThriftReader], Any], bytes]] = [
    (ThriftReader.binary, HUGE),
    (lambda reader: reader.skip(binary.STRING), HUGE),
    *((ThriftReader.list_header, bytes([type_]) + HUGE) for type_ in (2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16)),
    *((ThriftReader.map_header, bytes([type_, type_]) + HUGE) for type_ in (2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16)),
    (lambda reader: reader.skip(binary.LIST), b"\x02" + HUGE),
    (lambda reader: reader.skip(binary.MAP), b"\x02\x0c" + HUGE),
    (lambda reader: reader.i64s((1 << 31) - 1), b""),
    (lambda reader: reader.binaries((1 << 31) - 1), b""),
]


@pytest.mark.parametrize(("read", "claim"), CLAIMS)
def test_claim_beyond_the_frame_takes_no_memory(read: Callable[[ThriftReader], Any], claim: bytes) -> None:
    def reading() -> Work:
        reader = ThriftReader(claim + b"\x00\x00\x00\x01x" * 10)
        return lambda: _cut_short(reader)

    def _cut_short(reader: ThriftReader) -> None:
        with pytest.raises(TruncatedThrift):
            read(reader)

    assert peak_bytes(reading) < 20_000


@pytest.mark.parametrize(
    ("type_", "least"),
    [
        (binary.BOOL, 1),
        (binary.BYTE, 1),
        (binary.I16, 2),
        (binary.I32, 4),
        (binary.I64, 8),
        (binary.DOUBLE, 8),
        (binary.UUID, 16),
        (binary.STRING, 4),
        (binary.STRUCT, 1),
        (binary.LIST, 5),
        (binary.SET, 5),
        (binary.MAP, 6),
    ],
)
def test_count_is_checked_against_smallest_element_size(type_: int, least: int) -> None:
    header = bytes([type_]) + b"\x00\x00\x00\x07"
    assert ThriftReader(header + bytes(7 * least)).list_header() == (type_, 7)
    with pytest.raises(TruncatedThrift):
        ThriftReader(header + bytes(7 * least - 1)).list_header()


def test_count_of_pairs_is_checked_against_key_and_value() -> None:
    header = b"\x08\x0b\x00\x00\x00\x07"
    assert ThriftReader(header + bytes(7 * 8)).map_header() == (binary.I32, binary.STRING, 7)
    with pytest.raises(TruncatedThrift):
        ThriftReader(header + bytes(7 * 8 - 1)).map_header()


# Writing.


def test_application_exception_may_lack_fields_or_have_unknown_ones() -> None:
    assert binary.read_application_exception(ThriftReader(b"\x00")) == (0, "")
    unknown = b"\x02\x00\x00\x01" + b"\x02\x00\x09\x01" + b"\x08\x00\x01\x00\x00\x00\x05"
    more = unknown + b"\x08\x00\x02\x00\x00\x00\x07" + b"\x00"
    assert binary.read_application_exception(ThriftReader(more)) == (7, "")
    assert binary.read_application_exception(ThriftReader(b"\x0b\x00\x01\x00\x00\x00\x01\xff\x00")) == (0, "\ufffd")


def test_reason_that_is_not_utf_8_is_encoded() -> None:
    reader = ThriftReader(binary.application_exception(6, "queue \udcff"))
    assert binary.read_application_exception(reader) == (6, "queue \\udcff")
