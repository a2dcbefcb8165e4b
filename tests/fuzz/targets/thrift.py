"""The thrift codec: frames of the binary protocol, strict and not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kestrel.protocols.thrift import ThriftCodec
from tests.fuzz import spoken
from tests.fuzz.codecs import check_codec
from tests.fuzz.fed import Fed, fed, mending
from tests.fuzz.target import Target

LIMITS = ((1 << 25, 1 << 24, 1 << 20), (120, 10, 3), (30, 4, 1), (0, 0, 0))
"""Of a frame, an item and a list."""


def check(data: bytes) -> None:
    choices = Fed(data)
    limits, sizes = choose(choices)
    most_frame, _, _ = limits
    check_codec(partial(ThriftCodec, *limits), choices.rest(), sizes, max(most_frame, 4))


def choose(choices: Fed) -> tuple[tuple[int, int, int], list[int]]:
    """The limits, and the sizes of the pieces."""
    return LIMITS[choices.number(len(LIMITS))], choices.numbers(15)


def seeds() -> Mapping[str, bytes]:
    return {name: fed(said, 0, 2, 3, 30) for name, said in spoken.thrift_calls().items()} | {
        "small-limits": fed(b"".join(spoken.thrift_calls().values()), 1, 3, 5, 20, 20)
    }


TARGET = Target(check, seeds, lambda: spoken.THRIFT_WORDS, mending(choose, spoken.mended_frames))
