"""The thrift codec: frames of the binary protocol, strict and not."""

from __future__ import annotations

from functools import partial

from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.thrift import ThriftCodec
from tests.fuzz.choices import Choices, repairing
from tests.fuzz.codecs import check_codec
from tests.fuzz.target import Target

LIMITS = ((1 << 25, 1 << 24, 1 << 20), (120, 10, 3), (30, 4, 1), (0, 0, 0))
"""(frame size, item size, list size) limits."""


def check(data: bytes) -> None:
    choices = Choices(data)
    limits, sizes = choose(choices)
    max_frame, _, _ = limits
    check_codec(partial(ThriftCodec, *limits), choices.rest(), sizes, max(max_frame, 4))


def choose(choices: Choices) -> tuple[tuple[int, int, int], list[int]]:
    """Return the limits, and the sizes of the pieces."""
    return LIMITS[choices.number(len(LIMITS))], choices.numbers(15)


WORDS = (
    b"put", b"get", b"confirm", b"abort", b"peek", b"list_queues", b"flush_queue", b"flush_all_queues", b"delete_queue",
    b"current_status", b"set_status", b"get_version", b"\x80\x01\x00\x01", b"\x80\x01\x00\x04", b"\x0b\x00\x01",
    b"\x0f\x00\x02\x0b", b"\x0e\x00\x02\x0a", b"\x08\x00\x02", b"\x08\x00\x03", b"\x08\x00\x04", b"\x0c\x00\x09",
    b"\x0d\x00\x09\x0b\x0f", b"\x00\x00\x00\x04work", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
    b"put_delayed", b"\x0a\x00\x03\x00\x00\x00\x00\x00\x00\x05\xdc", b"\x00\x00\x00\x08+delayed",
)  # fmt: skip

_STRICT_CALL = b"\x80\x01\x00\x01"


def repaired(data: bytes) -> bytes:
    """Return data with frame lengths that reach to the next strict call."""
    parts = data.split(_STRICT_CALL)
    for index in range(1, len(parts)):
        is_last = index == len(parts) - 1
        size = len(_STRICT_CALL) + len(parts[index]) - (0 if is_last else binary.LENGTH_BYTES)
        if len(parts[index - 1]) >= binary.LENGTH_BYTES and size >= 0:
            parts[index - 1] = parts[index - 1][: -binary.LENGTH_BYTES] + size.to_bytes(4, "big")
    return _STRICT_CALL.join(parts)


TARGET = Target(check, lambda: WORDS, repairing(choose, repaired))
