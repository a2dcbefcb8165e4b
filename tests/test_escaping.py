"""Escaping and unescaping of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.escaping import escape_controls, escape_non_ascii, show_name, unescape_name


@pytest.mark.parametrize(
    ("name", "shown", "in_ascii"),
    [
        (b"work", "work", "work"),
        ("café".encode(), "café", r"caf\xc3\xa9"),
        ("列".encode(), "列", r"\xe5\x88\x97"),
        (b"caf\xe9", r"caf\xe9", r"caf\xe9"),
        (rb"a\xe9", r"a\\xe9", r"a\\xe9"),
        (b"a\\b", r"a\\b", r"a\\b"),
        (b"a\xc2\x85b", r"a\xc2\x85b", r"a\xc2\x85b"),
        (b"a\xe2\x80\xa8b", r"a\xe2\x80\xa8b", r"a\xe2\x80\xa8b"),
        (b"a\nb\x7f", r"a\x0ab\x7f", r"a\x0ab\x7f"),
        ("a\u202eb\u00a0c".encode(), r"a\xe2\x80\xaeb\xc2\xa0c", r"a\xe2\x80\xaeb\xc2\xa0c"),
        (b"\xed\xa0\x80", r"\xed\xa0\x80", r"\xed\xa0\x80"),
    ],
)
def test_names_are_shown_as_utf_8_and_other_bytes_escaped(name: bytes, shown: str, in_ascii: str) -> None:
    assert show_name(name) == shown
    assert escape_non_ascii(shown) == in_ascii
    assert unescape_name(shown.encode()) == unescape_name(in_ascii.encode()) == name


@given(st.binary())
def test_shown_name_is_unescaped_to_the_name(name: bytes) -> None:
    shown = show_name(name)
    assert unescape_name(shown.encode()) == unescape_name(escape_non_ascii(shown).encode()) == name
    assert escape_controls(shown) == shown
    assert shown.isprintable()


def test_other_backslashes_are_kept() -> None:
    assert unescape_name(rb"a\b\x\xG0") == rb"a\b\x\xG0"
