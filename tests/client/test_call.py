"""Calls: a reply is read in pieces, and its length is limited."""

from __future__ import annotations

import pytest

from kestrel.client.call import LINE, NOT_YET, Call, Reply, Stream
from kestrel.client.errors import BadReply, ConnectionFailed
from kestrel.protocols.buffer import ReceiveBuffer
from tests.client.reading import answered


def line_and_block(steps: list[bytes]) -> Reply[bytes]:
    """Read a length in a line and a block of that length. Append each part to `steps`."""
    line = yield LINE
    steps.append(line)
    block = yield int(line)
    steps.append(block)
    return block


def block_call() -> Call[bytes]:
    return Call(b"", line_and_block([]))


def item_call() -> Call[bytes | None]:
    return block_call().then(lambda block: block or None)


def test_reply_continues_only_when_its_next_part_is_complete() -> None:
    steps: list[bytes] = []
    call = Call(b"", line_and_block(steps))
    buffer = ReceiveBuffer()
    for piece in (b"5", b"\r", b"\n", b"hell"):
        buffer.receive(piece)
        assert call.read(buffer) is NOT_YET
    assert steps == [b"5"]


def test_line_length_is_limited() -> None:
    assert answered(Call(b"", line_and_block([]), max_line_bytes=5), b"0005\r\nhello") == b"hello"
    with pytest.raises(BadReply, match="longer than 5 bytes"):
        answered(Call(b"", line_and_block([]), max_line_bytes=5), b"00005\r\nhello")


def test_line_without_an_end_fails_when_it_is_too_long() -> None:
    call = Call(b"", line_and_block([]), max_line_bytes=5)
    buffer = ReceiveBuffer()
    buffer.receive(b"00000")
    assert call.read(buffer) is NOT_YET
    buffer.receive(b"0")
    with pytest.raises(BadReply):
        call.read(buffer)


def test_closing_without_a_reply_is_a_failure() -> None:
    with pytest.raises(ConnectionFailed):
        block_call().connection_ended()
    with pytest.raises(ConnectionFailed):
        item_call().connection_ended()


def test_ended_stream_reads_nothing_more() -> None:
    stream = Stream(b"", item_call, wait_ms=0)
    buffer = ReceiveBuffer()
    buffer.receive(b"0\r\n1\r\na")
    assert [stream.read(buffer), stream.read(buffer)] == [None, None]
    assert buffer.size == 4
    stream.connection_ended()


def test_stream_closed_before_its_end_has_failed() -> None:
    stream = Stream(b"", item_call, wait_ms=0)
    buffer = ReceiveBuffer()
    buffer.receive(b"1\r\na")
    assert stream.read(buffer) == b"a"
    with pytest.raises(ConnectionFailed):
        stream.connection_ended()
