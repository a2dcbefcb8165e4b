"""Commands as plain values that tests can compare, and helpers that split streams into pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from kestrel import commands
from kestrel.protocols.codec import Codec
from tests.costs import costs_about_the_same

CommandValues = tuple[Any, ...]
"""The class of a command, and its fields with their values."""

_SEQUENCES = {"items", "queues"}

LITTLE_BYTES, MANY_BYTES = 16 * 1024, 4 * 1024 * 1024
PIECES = 1000


def fields_of(kind: type) -> list[str]:
    """Return the names of a command's fields. A compiled class has no slots, but lists its attributes."""
    compiled = set(getattr(kind, "__mypyc_attrs__", ())) - set(getattr(commands.Command, "__mypyc_attrs__", ()))
    own_classes = kind.__mro__[:-2]  # without Command itself
    return sorted(compiled) or [slot for each in own_classes for slot in sorted(vars(each).get("__slots__", ()))]


def values_of(command: commands.Command) -> CommandValues:
    """Return the class and all fields of a command; equal commands have equal values."""
    fields = ((name, getattr(command, name)) for name in fields_of(type(command)))
    return (type(command), *((name, list(value) if name in _SEQUENCES else value) for name, value in fields))


def drain(codec: Codec) -> list[commands.Command]:
    """Return every command in the bytes received so far."""
    made = []
    while (command := codec.next_command()) is not None:
        made.append(command)
    return made


def parse_with(codec: Codec, pieces: Sequence[bytes]) -> list[commands.Command]:
    """Return every command of these pieces, each parsed as it arrives."""
    made = []
    for piece in pieces:
        codec.buffer.receive(piece)
        made += drain(codec)
    return made


def byte_by_byte(stream: bytes) -> list[bytes]:
    """Split a stream into single bytes."""
    return [stream[index : index + 1] for index in range(len(stream))]


def small_pieces_cost_the_same_behind_much(make: Callable[[], Codec], begin: bytes, piece: bytes) -> bool:
    """Return True if parsing small pieces costs no more after much data of the same kind."""

    def prepared(size: int) -> Callable[[], object]:
        codec = make()
        # Once as the first data, and once behind it.
        for data in (begin, piece * (size // 2 // len(piece)), piece * (size // 2 // len(piece)), piece):
            codec.buffer.receive(data)
            assert drain(codec) == []

        def bring() -> None:
            for _ in range(PIECES):
                codec.buffer.receive(piece)
                codec.next_command()

        return bring

    return costs_about_the_same(partial(prepared, LITTLE_BYTES), partial(prepared, MANY_BYTES))


def cut_at(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Split a stream at these positions; later ones count as its end."""
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]
