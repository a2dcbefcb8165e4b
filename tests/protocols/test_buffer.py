"""The receive buffer: lines and blocks from bytes that arrive in any pieces."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.protocols.buffer import NoLineEnd, ReceiveBuffer
from tests.costs import costs_about_the_same
from tests.protocols.command_values import LITTLE_BYTES, MANY_BYTES, cut_at


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def test_dropping_starts_behind_the_last_returned_line() -> None:
    buffer = ReceiveBuffer()
    buffer.receive(b"\nget work:\n\nnext\n")
    assert [buffer.take_line(), buffer.take_line()] == [b"", b"get work:"]
    assert buffer.drop_lines()
    assert buffer.take_line() == b"next"


def test_returned_data_is_immutable() -> None:
    buffer = ReceiveBuffer()
    for piece in pieces(b"line\nblock", 3):
        buffer.receive(piece)
    given_out = [buffer.take_line(), buffer.take(5)]
    assert [type(each) for each in given_out] == [bytes, bytes]


def held_by(buffer: ReceiveBuffer) -> int:
    """Return the bytes of memory that a buffer keeps alive."""
    return sum(sys.getsizeof(each) for each in gc.get_referents(buffer) if isinstance(each, bytes | bytearray))


@pytest.mark.parametrize("size", [1000, 100_000], ids=["in pieces", "in one"])
@pytest.mark.parametrize("take", [lambda buffer: buffer.take(100_000), ReceiveBuffer.take_line], ids=["block", "line"])
def test_idle_connection_holds_no_memory(size: int, take: Callable[[ReceiveBuffer], bytes | None]) -> None:
    buffer = ReceiveBuffer()
    for piece in pieces(b"x" * 99_999 + b"\n", size):
        assert take(buffer) is None
        buffer.receive(piece)
    assert held_by(buffer) >= 100_000
    assert take(buffer) is not None
    assert held_by(buffer) <= held_by(ReceiveBuffer())


TIMES = 1000

@pytest.mark.parametrize("first", [b"", b"get wo"], ids=["at once", "with a beginning"])
def test_many_lines_cost_linear_work(first: bytes) -> None:
    def prepared(size: int) -> Callable[[], object]:
        buffer = ReceiveBuffer()
        buffer.receive(first)
        buffer.receive(b"get work\n" * (size // 9))
        assert buffer.take_line() is not None

        def take() -> None:
            for _ in range(TIMES):
                assert buffer.take_line() == b"get work"

        return take

    assert costs_about_the_same(partial(prepared, LITTLE_BYTES), partial(prepared, MANY_BYTES))


@given(
    data=st.lists(st.sampled_from([b"\n", b"\r", b"x"]), max_size=30).map(b"".join),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_dropped_lines_do_not_depend_on_piece_borders(data: bytes, cuts: list[int]) -> None:
    buffer = ReceiveBuffer()
    is_there = False
    for piece in cut_at(data, cuts):
        buffer.receive(piece)
        is_there = is_there or buffer.drop_lines()
    *lines, _ = data.split(b"\n")
    empty = next((number for number, line in enumerate(lines, 1) if line in (b"", b"\r")), None)
    assert is_there == (empty is not None)
    if empty is not None:
        assert buffer.take(buffer.size) == b"\n".join(data.split(b"\n")[empty:])


@given(st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 20), st.none()), max_size=20))
def test_lines_and_blocks_may_alternate(steps: list[bytes | int | None]) -> None:
    """Bytes are received, a number takes a block of that size, None takes a line. A plain bytes object is the model."""
    buffer = ReceiveBuffer()
    rest = b""
    for step in steps:
        if isinstance(step, bytes):
            step = step.replace(b"\x00", b"\n")
            buffer.receive(step)
            rest += step
        elif step is None:
            line, feed, behind = rest.partition(b"\n")
            assert buffer.take_line() == (line if feed else None)
            rest = behind if feed else rest
        else:
            block = rest[:step] if len(rest) >= step else None
            assert buffer.take(step) == block
            rest = rest if block is None else rest[step:]
        assert buffer.size == len(rest)


@pytest.mark.parametrize("how", ["lines", "dropped", "block"])
def test_small_remainder_does_not_keep_large_buffer(how: str) -> None:
    buffer = ReceiveBuffer()
    buffer.receive(b"x" * 65_000 + b"\ny")
    if how == "lines":
        buffer.take_line()
    elif how == "dropped":
        assert not buffer.drop_lines()
    else:
        buffer.take(65_000)
    assert buffer.size <= 2
    assert held_by(buffer) < 1000


def test_skip_drops_the_expected_bytes_only() -> None:
    buffer = ReceiveBuffer()
    assert not buffer.skip(b"get\n")
    buffer.receive(b"get\nge")
    assert not buffer.skip(b"set\n")
    assert buffer.skip(b"get\n")
    assert not buffer.skip(b"get\n")
    buffer.receive(b"t\n")
    assert (buffer.take_line(), buffer.size) == (b"get", 0)


@given(st.integers(0, 12), st.integers(1, 12))
def test_block_in_pieces_is_followed_by_the_rest(taken: int, size: int) -> None:
    data = bytes(range(65, 77)) + b"\r\nline\nmore"
    buffer = ReceiveBuffer()
    for piece in pieces(data, size):
        buffer.receive(piece)
    assert buffer.take(taken) == data[:taken]
    assert buffer.take(12 - taken, b"\r\n") == data[taken:12]
    assert (buffer.take_line(), buffer.size) == (b"line", 4)


@given(st.lists(st.sampled_from([1, 2, 100, 4095, 4096, 5000]), min_size=1, max_size=12), st.integers(0, 20_000))
def test_lines_and_blocks_in_large_and_small_pieces_are_read(sizes: list[int], block: int) -> None:
    expected = [b"set", bytes(block), b"x" * 5000, b"y" * block, b"end"]
    data = b"set\n%b\r\n%b\n%b\r\nend\n" % (expected[1], expected[2], expected[3])
    buffer = ReceiveBuffer()
    takes = [
        buffer.take_line,
        lambda: buffer.take(block, b"\r\n"),
        buffer.take_line,
        lambda: buffer.take(block, b"\r\n"),
        buffer.take_line,
    ]
    taken: list[bytes] = []
    sent = 0
    while sent < len(data):
        size = sizes[len(taken) % len(sizes)] if sent else sizes[0]
        buffer.receive(data[sent : sent + size])
        sent = min(len(data), sent + size)
        while len(taken) < len(takes) and (found := takes[len(taken)]()) is not None:
            taken.append(found)
        assert buffer.size == sent - sum(map(len, taken)) - sum((1, 2, 1, 2, 1)[: len(taken)])
        sizes = sizes[1:] + sizes[:1]
    assert taken == expected


def test_block_without_line_end_is_an_error() -> None:
    for size in (1, 5000, 5001, 5002):
        buffer = ReceiveBuffer()
        for piece in pieces(bytes(5000) + b"\r?", size):
            buffer.receive(piece)
        with pytest.raises(NoLineEnd):
            buffer.take(5000, b"\r\n")
