"""Feeds a call the bytes of its reply, in every way in which a network may bring them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kestrel.client.call import NOT_YET, Call, NotYet, Stream
from kestrel.protocols.buffer import ReceiveBuffer

T = TypeVar("T")

BEHIND = b"STORED\r\nthe beginning of what comes next"


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def answered(call: Call[T], reply: bytes) -> T | NotYet:
    """Return the value of a reply that arrives at once."""
    buffer = ReceiveBuffer()
    buffer.receive(reply)
    return call.read(buffer)


def value_of(make_call: Callable[[], Call[T]], reply: bytes) -> T:
    """The value of that reply: whole, in pieces of each of several sizes, and with other bytes behind it.

    It is the same each time, there is none before the last byte, and what is behind stays in the buffer.
    """
    values = []
    for size in (1, 2, 3, 7, len(reply)):
        call, buffer = make_call(), ReceiveBuffer()
        *before, last = pieces(reply, size)
        for piece in before:
            buffer.receive(piece)
            assert call.read(buffer) is NOT_YET
        buffer.receive(last + BEHIND)
        value = call.read(buffer)
        assert value is not NOT_YET
        assert buffer.take(len(BEHIND)) == BEHIND
        values.append(value)
    assert all(value == values[0] for value in values)
    return values[0]


def items_of(make_stream: Callable[[], Stream[T]], reply: bytes) -> list[T]:
    """The values of a stream up to its end, which must come with the last byte."""
    all_values = []
    for size in (1, 2, 3, 7, len(reply)):
        stream, buffer = make_stream(), ReceiveBuffer()
        values: list[T] = []
        is_over = False
        for piece in pieces(reply, size):
            assert not is_over
            buffer.receive(piece)
            while (value := stream.read(buffer)) is not NOT_YET and not is_over:
                is_over = value is None
                if value is not None:
                    values.append(value)
        assert is_over
        all_values.append(values)
    assert all(values == all_values[0] for values in all_values)
    return all_values[0]
