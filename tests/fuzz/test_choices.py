"""Inputs with choices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.choices import Choices, repairing, split_at, with_choices


def test_input_begins_with_data_and_ends_with_choices() -> None:
    choices = Choices(with_choices(b"get work\r\n", 7, 2, 30, 40))
    assert (choices.number(5), choices.numbers(3), choices.rest()) == (2, [30, 40], b"get work\r\n")


def test_missing_choice_is_0() -> None:
    choices = Choices(b"\x03")
    assert (choices.numbers(3), choices.number(2), choices.rest()) == ([0, 0, 0], 0, b"")


@given(st.binary(max_size=30), st.lists(st.integers(0, 255), max_size=8))
def test_pieces_are_not_empty_and_keep_every_byte(stream: bytes, sizes: list[int]) -> None:
    pieces = split_at(stream, sizes)
    assert b"".join(pieces) == stream
    assert all(pieces)


@pytest.mark.parametrize(("sizes", "pieces"), [([], [b"abcdef"]), ([2, 0], [b"ab", b"c", b"def"]), ([9], [b"abcdef"])])
def test_pieces_have_the_chosen_sizes(sizes: list[int], pieces: list[bytes]) -> None:
    assert split_at(b"abcdef", sizes) == pieces


def test_repair_keeps_the_choices() -> None:
    repair = repairing(lambda choices: choices.numbers(5), bytes.upper)
    assert repair(with_choices(b"abc", 2, ord("x"), ord("y"))) == b"ABC" + with_choices(b"", 2, ord("x"), ord("y"))
