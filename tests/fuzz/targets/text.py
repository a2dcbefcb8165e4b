"""The text codec."""

from __future__ import annotations

from functools import partial

from kestrel.protocols.text import PARTIAL_PUT_ITEM_OVERHEAD_BYTES, TextCodec
from tests.fuzz.choices import Choices
from tests.fuzz.codecs import check_codec
from tests.fuzz.target import Target

LIMITS = ((8192, 1 << 24, 1024, 1 << 25), (40, 20, 3, 30), (16, 100, 100, 10), (1, 0, 0, 0))
"""(line size, item size, items of a put, total size of a put) limits."""


def check(data: bytes) -> None:
    choices = Choices(data)
    limits = LIMITS[choices.number(len(LIMITS))]
    sizes = choices.numbers(15)
    max_line, _, max_items, max_request = limits
    # A CR at the end may not belong to the data. Of discarded data, two bytes are buffered.
    max_buffered = max(max_line, max_request + 1 + max_items * PARTIAL_PUT_ITEM_OVERHEAD_BYTES, 2)
    check_codec(partial(TextCodec, *limits), choices.rest(), sizes, max_buffered)


WORDS = (
    b"put ", b"get ", b"peek ", b"monitor ", b"confirm ", b"work", b":\n", b"\n\n", b"\r\n", b"delete ", b"flush ",
    b"flush_all", b"flush_expired ", b"flush_all_expired", b"version", b"stats", b"dump_stats", b"dump_config",
    b"reload", b"status", b"shutdown", b"quit", b"2147483647", b"-1", b"a+b", b"ReadOnly", b" delay=1500:\n",
    b"315360000001", b"+delayed",
)  # fmt: skip

TARGET = Target(check, lambda: WORDS)
