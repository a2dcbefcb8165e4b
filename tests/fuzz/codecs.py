"""What every codec promises of any bytes that come in any pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kestrel import errors
from kestrel.commands import Command, Malformed
from kestrel.protocols.codec import Codec
from tests.fuzz.fed import cut
from tests.protocols.command_values import CommandValues, byte_by_byte, drain, values_of


def check_codec(make: Callable[[], Codec], stream: bytes, sizes: Sequence[int], most_held: int) -> None:
    """The same commands in one piece and in pieces of these sizes, or byte by byte where there are none.

    Each of them can be answered. Between the pieces no more is held than `most_held` bytes.
    """
    whole = commands_in(make(), [stream], most_held)
    pieces = cut(stream, sizes) if sizes else byte_by_byte(stream)
    assert commands_in(make(), pieces, most_held) == whole


def commands_in(codec: Codec, pieces: Sequence[bytes], most_held: int) -> list[CommandValues]:
    """The commands as plain values, with what their replies repeat of them."""
    made: list[CommandValues] = []
    has_closed = False
    for piece in pieces:
        codec.receive(piece)
        for command in drain(codec):
            assert not has_closed, "a command follows one that closes"
            has_closed = isinstance(command, Malformed) and command.closes
            made.append((*values_of(command), getattr(command, "call", None)))
            check_answers(codec, command)
        assert len(codec) <= most_held, f"{len(codec)} bytes are held; limit={most_held}"
        assert not has_closed or not len(codec), "bytes of a stream out of step are held"
    codec.end()
    assert not len(codec)
    return made


def check_answers(codec: Codec, command: Command) -> None:
    """Whatever goes wrong with a command can be said."""
    for error in (errors.ClientError("no"), errors.StorageError("no"), ValueError("no")):
        reply, _ = codec.error(command, error)
        assert reply
