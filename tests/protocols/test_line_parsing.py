"""Words, numbers and error reasons of the line protocols."""

from __future__ import annotations

import pytest

from kestrel.protocols.line_parsing import BadNumber, detect_other_protocol, encode_one_line, parse_int32, split_words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b"   ", []),
        (b"get work", [b"get", b"work"]),
        (b"get work  ", [b"get", b"work"]),
        (b"get  work", [b"get", b"", b"work"]),
        (b" get", [b"", b"get"]),
        (b"get\twork\r", [b"get\twork\r"]),
    ],
)
def test_single_spaces_separate_words_and_trailing_ones_are_ignored(line: bytes, words: list[bytes]) -> None:
    assert split_words(line) == words


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


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("disk full", b"disk full"),
        ("one\r\ntwo\nthree ", b"one two three"),
        ("\xdcbel \N{SNOWMAN}\N{LINE SEPARATOR}!", b"\xdcbel ? !"),
    ],
)
def test_reason_is_one_line_of_bytes(reason: str, line: bytes) -> None:
    assert encode_one_line(reason) == line


@pytest.mark.parametrize(
    ("line", "protocol"),
    [
        (b"POST / HTTP/1.1", "HTTP"),
        (b"anything\there http/3", "HTTP"),
        (b"HTTP/1.1 200 OK", "HTTP"),
        (b"post", "HTTP"),
        (b"accept:*/*", "HTTP"),
        (b"sec-fetch-site: cross-site", "HTTP"),
        (b"Host:", "HTTP"),
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"", None),
        (b"posted", None),
        (b"get post", None),
        (b"get work/t=100/open", None),
        (b"get HTTP", None),
        (b"put host:", None),
        (b"bogus:", None),
        (b":", None),
        (b"\x16\x04", None),
    ],
)
def test_lines_of_http_and_tls_are_recognized(line: bytes, protocol: str | None) -> None:
    assert detect_other_protocol(line) == protocol
