"""Commands as plain values, so that tests can compare them, and streams cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kestrel import commands
from kestrel.protocols.codec import Codec

Told = tuple[Any, ...]
"""A command as plain values: its class and its fields."""

_SEQUENCES = {"items", "queues"}


def told(command: commands.Command) -> Told:
    """Every field by its name; two commands that tell the same are the same."""
    kinds = type(command).__mro__[:-2]  # without Command itself
    slots = [slot for kind in kinds for slot in sorted(getattr(kind, "__slots__", ()))]
    fields = ((slot, getattr(command, slot)) for slot in slots)
    return (type(command), *((slot, list(value) if slot in _SEQUENCES else value) for slot, value in fields))


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


def cut_at(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    """A stream in pieces that end at these places; those beyond its end count as its end."""
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]
