"""Replies that the thrift client reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kestrel.client.call import Call
from kestrel.client.thrift import ThriftCalls
from kestrel.protocols import thrift_binary as binary
from tests.fuzz import protocol_seeds
from tests.fuzz.choices import Choices, repairing, with_choices
from tests.fuzz.replies import check_replies
from tests.fuzz.target import Target

_ITEM = binary.binary_field(1, b"hello") + binary.i64_field(2, 7) + binary.END
_INFO = binary.binary_field(1, b"a") + binary.i64_field(2, 1) + binary.i32_field(6, 1) + binary.END

REQUESTS: tuple[tuple[Callable[[ThriftCalls], Call[object]], bytes, bytes], ...] = (
    # request, method, result
    (lambda calls: calls.put(b"work", [b"a", b"b"]), b"put", binary.i32_field(0, 2)),
    (lambda calls: calls.get(b"work", 3, 500, 60_000), b"get", binary.list_field(0, binary.STRUCT, 2) + 2 * _ITEM),
    (lambda calls: calls.confirm(b"work", [7]), b"confirm", binary.i32_field(0, 1)),
    (lambda calls: calls.peek(b"work"), b"peek", binary.struct_field(0) + _INFO),
    (lambda calls: calls.flush(b"work"), b"flush_queue", b""),
    (lambda calls: calls.status(), b"current_status", binary.i32_field(0, 2)),
    (lambda calls: calls.version(), b"get_version", binary.binary_field(0, b"1.2.3")),
)


def check(data: bytes) -> None:
    choices = Choices(data)
    index, sizes = choose(choices)
    make, _, _ = REQUESTS[index]
    check_replies(lambda: make(ThriftCalls(1000)), choices.rest(), sizes)


def choose(choices: Choices) -> tuple[int, list[int]]:
    """Return the index of a request, and the sizes of the pieces."""
    return choices.number(len(REQUESTS)), choices.numbers(15)


def seeds() -> Mapping[str, bytes]:
    found = {}
    for index, (_, method, result) in enumerate(REQUESTS):
        reply = binary.frame(binary.header(method, binary.REPLY, 1), result, binary.END)
        found[method.decode()] = with_choices(reply, index, 2, 3, 20)
    refusal = binary.application_exception(binary.INTERNAL_ERROR, "item too large; limit=3")
    refused = binary.frame(binary.header(b"put", binary.EXCEPTION, 1), refusal)
    return {**found, "refused": with_choices(refused, 0, 1, 30)}


def repaired(data: bytes) -> bytes:
    """Return the frame with its correct length."""
    return (len(data) - binary.LENGTH_BYTES).to_bytes(4, "big") + data[binary.LENGTH_BYTES :] if len(data) > 4 else data


WORDS = (*protocol_seeds.THRIFT_WORDS, b"\x80\x01\x00\x02", b"\x80\x01\x00\x03", b"\x0c\x00\x00", b"\x0f\x00\x00\x0c")

TARGET = Target(check, seeds, lambda: WORDS, repairing(choose, repaired))
