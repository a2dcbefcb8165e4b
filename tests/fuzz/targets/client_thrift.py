"""Replies that the thrift client reads."""

from __future__ import annotations

from collections.abc import Callable

from kestrel.client.call import Call
from kestrel.client.thrift import ThriftCalls
from kestrel.protocols import thrift_binary as binary
from tests.fuzz.choices import Choices, repairing
from tests.fuzz.replies import check_replies
from tests.fuzz.target import Target
from tests.fuzz.targets import thrift

REQUESTS: tuple[Callable[[ThriftCalls], Call[object]], ...] = (
    lambda calls: calls.put(b"work", [b"a", b"b"]),
    lambda calls: calls.get(b"work", 3, 500, 60_000),
    lambda calls: calls.confirm(b"work", [7]),
    lambda calls: calls.peek(b"work"),
    lambda calls: calls.flush(b"work"),
    lambda calls: calls.status(),
    lambda calls: calls.version(),
)


def check(data: bytes) -> None:
    choices = Choices(data)
    index, sizes = choose(choices)
    check_replies(lambda: REQUESTS[index](ThriftCalls(1000)), choices.rest(), sizes)


def choose(choices: Choices) -> tuple[int, list[int]]:
    """Return the index of a request, and the sizes of the pieces."""
    return choices.number(len(REQUESTS)), choices.numbers(15)


def repaired(data: bytes) -> bytes:
    """Return the frame with its correct length."""
    return (len(data) - binary.LENGTH_BYTES).to_bytes(4, "big") + data[binary.LENGTH_BYTES :] if len(data) > 4 else data


WORDS = (*thrift.WORDS, b"\x80\x01\x00\x02", b"\x80\x01\x00\x03", b"\x0c\x00\x00", b"\x0f\x00\x00\x0c")

TARGET = Target(check, lambda: WORDS, repairing(choose, repaired))
