"""Feeds a call the bytes of its reply in pieces of any size."""

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
    """Return the value of a reply that arrives whole or in pieces, followed by other bytes.

    The value must not depend on the pieces. It must be complete with the last byte, and later bytes must stay in the
    buffer.
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
    """Return the values of a stream, whose end must come with the last byte."""
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
