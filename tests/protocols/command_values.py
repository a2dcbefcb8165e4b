"""Commands as plain values, so that tests can compare them, and streams cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from kestrel import commands
from kestrel.protocols.codec import Codec
from tests.costs import costs_about_the_same

Told = tuple[Any, ...]
"""A command as plain values: its class and its fields."""

_SEQUENCES = {"items", "queues"}

LITTLE_BYTES, MANY_BYTES = 16 * 1024, 4 * 1024 * 1024
PIECES = 1000


def fields_of(kind: type) -> list[str]:
    """The names of a command's fields; a compiled class has no slots, but knows them."""
    compiled = set(getattr(kind, "__mypyc_attrs__", ())) - set(getattr(commands.Command, "__mypyc_attrs__", ()))
    own_classes = kind.__mro__[:-2]  # without Command itself
    return sorted(compiled) or [slot for each in own_classes for slot in sorted(vars(each).get("__slots__", ()))]


def told(command: commands.Command) -> Told:
    """Every field by its name; two commands that tell the same are the same."""
    fields = ((name, getattr(command, name)) for name in fields_of(type(command)))
    return (type(command), *((name, list(value) if name in _SEQUENCES else value) for name, value in fields))


def drain(codec: Codec) -> list[commands.Command]:
    """Every command that the bytes so far make."""
    made = []
    while (command := codec.next_command()) is not None:
        made.append(command)
    return made


def parse_with(codec: Codec, pieces: Sequence[bytes]) -> list[commands.Command]:
    """Every command that these pieces make, when each is parsed as it comes."""
    made = []
    for piece in pieces:
        codec.receive(piece)
        made += drain(codec)
    return made


def byte_by_byte(stream: bytes) -> list[bytes]:
    """A stream in the smallest pieces."""
    return [stream[index : index + 1] for index in range(len(stream))]


def small_pieces_cost_the_same_behind_much(make: Callable[[], Codec], begin: bytes, piece: bytes) -> bool:
    """Whether what comes in small pieces costs no more where much of the same has come before."""

    def prepared(size: int) -> Callable[[], object]:
        codec = make()
        # Once as what came first, and once as what came behind that.
        for data in (begin, piece * (size // 2 // len(piece)), piece * (size // 2 // len(piece)), piece):
            codec.receive(data)
            assert drain(codec) == []

        def bring() -> None:
            for _ in range(PIECES):
                codec.receive(piece)
                codec.next_command()

        return bring

    return costs_about_the_same(partial(prepared, LITTLE_BYTES), partial(prepared, MANY_BYTES))


def cut_at(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    """A stream in pieces that end at these places; those beyond its end count as its end."""
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]
