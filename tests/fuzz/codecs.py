"""Checks that hold for every codec and any bytes, in any pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kestrel import errors
from kestrel.commands import Command, Malformed, OptionalReplyCommand
from kestrel.protocols.codec import Codec
from tests.fuzz.choices import split_at
from tests.protocols.command_values import CommandValues, byte_by_byte, drain, values_of


def check_codec(make: Callable[[], Codec], stream: bytes, sizes: Sequence[int], max_buffered: int) -> None:
    """Check that a stream gives the same commands in one piece and in pieces of these sizes (none: byte by byte).

    Each command can be answered. Between the pieces the codec buffers at most `max_buffered` bytes.
    """
    whole = commands_in(make(), [stream], max_buffered)
    pieces = split_at(stream, sizes) if sizes else byte_by_byte(stream)
    assert commands_in(make(), pieces, max_buffered) == whole


def commands_in(codec: Codec, pieces: Sequence[bytes], max_buffered: int) -> list[CommandValues]:
    """Return the commands as plain values, with the values that their replies repeat."""
    made: list[CommandValues] = []
    has_closed = False
    for piece in pieces:
        codec.buffer.receive(piece)
        for command in drain(codec):
            assert not has_closed, "a command follows one that closes the connection"
            has_closed = isinstance(command, Malformed) and command.closes
            made.append((*values_of(command), getattr(command, "call", None)))
            check_error_replies(codec, command)
        assert len(codec) <= max_buffered, f"{len(codec)} bytes are buffered; limit={max_buffered}"
        assert not has_closed or not len(codec), "bytes are buffered after a command that closes the connection"
    codec.end()
    assert not len(codec)
    return made


def check_error_replies(codec: Codec, command: Command) -> None:
    """Check that the codec has an error reply for a command, unless the client wants none."""
    wants_reply = not isinstance(command, OptionalReplyCommand) or command.wants_reply
    for error in (errors.ClientError("no"), errors.StorageError("no"), ValueError("no")):
        reply, _ = codec.error(command, error)
        assert bool(reply) is wants_reply
