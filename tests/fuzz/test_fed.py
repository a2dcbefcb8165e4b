"""Inputs taken apart, and put together again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.fed import Fed, cut, fed, mending


def test_an_input_begins_with_what_is_fed_and_ends_with_the_choices() -> None:
    choices = Fed(fed(b"get work\r\n", 7, 2, 30, 40))
    assert (choices.number(5), choices.numbers(3), choices.rest()) == (2, [30, 40], b"get work\r\n")


def test_an_input_that_ends_too_early_chooses_0() -> None:
    choices = Fed(b"\x03")
    assert (choices.numbers(3), choices.number(2), choices.rest()) == ([0, 0, 0], 0, b"")


@given(st.binary(max_size=30), st.lists(st.integers(0, 255), max_size=8))
def test_no_byte_is_lost_between_the_pieces_and_none_is_empty(stream: bytes, sizes: list[int]) -> None:
    pieces = cut(stream, sizes)
    assert b"".join(pieces) == stream
    assert all(pieces)


@pytest.mark.parametrize(("sizes", "pieces"), [([], [b"abcdef"]), ([2, 0], [b"ab", b"c", b"def"]), ([9], [b"abcdef"])])
def test_pieces_have_the_sizes_that_were_chosen(sizes: list[int], pieces: list[bytes]) -> None:
    assert cut(b"abcdef", sizes) == pieces


def test_mending_leaves_the_choices_as_they_are() -> None:
    mend = mending(lambda choices: choices.numbers(5), bytes.upper)
    assert mend(fed(b"abc", 2, ord("x"), ord("y"))) == b"ABC" + fed(b"", 2, ord("x"), ord("y"))
