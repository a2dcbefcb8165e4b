"""The thrift codec: frames of the binary protocol, strict and not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kestrel.protocols.thrift import ThriftCodec
from tests.fuzz import protocol_seeds
from tests.fuzz.choices import Choices, repairing, with_choices
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


def seeds() -> Mapping[str, bytes]:
    return {name: with_choices(stream, 0, 2, 3, 30) for name, stream in protocol_seeds.thrift_calls().items()} | {
        "small-limits": with_choices(b"".join(protocol_seeds.thrift_calls().values()), 1, 3, 5, 20, 20)
    }


TARGET = Target(check, seeds, lambda: protocol_seeds.THRIFT_WORDS, repairing(choose, protocol_seeds.repaired_frames))
