"""Calls: a reply is read in pieces, and its length is limited."""

from __future__ import annotations

import pytest

from kestrel.client.call import LINE, NOT_YET, Call, HangUp, Reply, Stream
from kestrel.client.errors import BadReply, ConnectionFailed
from kestrel.protocols.buffer import ReceiveBuffer
from tests.client.reading import answered, items_of, value_of


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


def test_value_is_complete_with_the_last_byte() -> None:
    assert value_of(block_call, b"5\r\nhello") == b"hello"
    assert value_of(block_call, b"4\r\n\r\na\n") == b"\r\na\n"


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


def test_line_must_end_in_carriage_return_and_line_feed() -> None:
    with pytest.raises(BadReply):
        answered(block_call(), b"5\nhello")


def test_closing_without_a_reply_is_a_failure() -> None:
    with pytest.raises(ConnectionFailed):
        block_call().connection_ended()
    with pytest.raises(ConnectionFailed):
        item_call().connection_ended()


def test_closing_answers_some_requests() -> None:
    def nothing() -> Reply[None]:
        yield LINE

    assert HangUp(b"", nothing()).then(lambda _: "done").connection_ended() == "done"


def test_call_with_another_value_has_the_same_request_and_wait() -> None:
    call = Call(b"get work/t=50\r\n", line_and_block([]), wait_ms=50)
    other = call.then(len)
    assert (other.request, other.wait_ms) == (call.request, call.wait_ms)
    assert value_of(lambda: block_call().then(len), b"5\r\nhello") == 5


def test_stream_returns_values_until_its_end() -> None:
    def stream() -> Stream[bytes]:
        return Stream(b"", item_call, wait_ms=0)

    assert items_of(stream, b"1\r\na2\r\nbc0\r\n") == [b"a", b"bc"]


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
