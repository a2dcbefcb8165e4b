"""Words, numbers and error reasons of the line protocols."""

from __future__ import annotations

import pytest

from kestrel.protocols.line_parsing import BadNumber, parse_int32


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (b"0", 0),
        (b"007", 7),
        (b"+7", 7),
        (b"-7", -7),
        (b"2147483647", 2**31 - 1),
        (b"-2147483648", -(2**31)),
        (b"0" * 31 + b"1", 1),
    ],
)
def test_number_is_a_signed_32_bit_decimal(word: bytes, value: int) -> None:
    assert parse_int32(word) == value


@pytest.mark.parametrize(
    "word",
    [
        *(b"", b"-", b"+", b"--1", b"1.5", b"1_000", b" 1", b"1\r", b"0x10", b"one", b"\xb2"),
        *(b"2147483648", b"-2147483649", b"0" * 32 + b"1", b"9" * 10_000),
    ],
)
def test_other_words_are_no_numbers(word: bytes) -> None:
    with pytest.raises(BadNumber):
        parse_int32(word)
