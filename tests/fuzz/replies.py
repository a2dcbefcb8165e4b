"""Checks of clients that read any replies, in any pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kestrel.client.call import NOT_YET, Call, Stream
from kestrel.client.errors import BadReply, ConnectionFailed, Refused
from kestrel.protocols.buffer import ReceiveBuffer
from tests.fuzz.choices import split_at
from tests.protocols.command_values import byte_by_byte

Request = Call[Any] | Stream[Any]


def check_replies(make: Callable[[], Request], stream: bytes, sizes: Sequence[int]) -> None:
    """Check that a stream gives the same results in one piece and in pieces of these sizes (none: byte by byte)."""
    whole = results_of(make(), [stream])
    pieces = split_at(stream, sizes) if sizes else byte_by_byte(stream)
    assert results_of(make(), pieces) == whole


def results_of(request: Request, pieces: Sequence[bytes]) -> list[object]:
    """Return the values or the error of a call or stream, and the remaining bytes if the client is in step."""
    buffer = ReceiveBuffer()
    found: list[object] = []
    has_ended = False
    for piece in pieces:
        buffer.receive(piece)
        while not has_ended:
            try:
                value = request.read(buffer)
            except (BadReply, Refused) as error:
                value, has_ended = (type(error), str(error)), True
            if value is NOT_YET:
                break
            found.append(value)
            has_ended = has_ended or isinstance(request, Call) or value is None
    if not has_ended:
        try:
            request.connection_ended()
        except ConnectionFailed as error:
            found.append((type(error), str(error)))
    is_in_step = has_ended and not (found and isinstance(found[-1], tuple) and BadReply in found[-1])
    return [*found, buffer.take(buffer.size) if is_in_step else None]
