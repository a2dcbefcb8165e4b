"""Replies that a client reads: any bytes, in any pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kestrel.client.call import NOT_YET, Call, Stream
from kestrel.client.errors import BadReply, ConnectionFailed, Refused
from kestrel.protocols.buffer import ReceiveBuffer
from tests.fuzz.fed import cut
from tests.protocols.command_values import byte_by_byte

Asked = Call[Any] | Stream[Any]


def check_replies(make: Callable[[], Asked], stream: bytes, sizes: Sequence[int]) -> None:
    """The same values and errors in one piece and in pieces of these sizes, or byte by byte where there are none."""
    whole = answers(make(), [stream])
    pieces = cut(stream, sizes) if sizes else byte_by_byte(stream)
    assert answers(make(), pieces) == whole


def answers(asked: Asked, pieces: Sequence[bytes]) -> list[object]:
    """The values of a call or a stream, or how it failed; and what is left behind them, if the client is in step."""
    buffer = ReceiveBuffer()
    found: list[object] = []
    is_over = False
    for piece in pieces:
        buffer.receive(piece)
        while not is_over:
            try:
                value = asked.read(buffer)
            except (BadReply, Refused) as error:
                value, is_over = (type(error), str(error)), True
            if value is NOT_YET:
                break
            found.append(value)
            is_over = is_over or isinstance(asked, Call) or value is None
    if not is_over:
        try:
            asked.connection_ended()
        except ConnectionFailed as error:
            found.append((type(error), str(error)))
    is_in_step = is_over and not (found and isinstance(found[-1], tuple) and BadReply in found[-1])
    return [*found, buffer.take(buffer.size) if is_in_step else None]
