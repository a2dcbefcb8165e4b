"""Calls: a reply is read as it comes, and bounded."""

from __future__ import annotations

import pytest

from kestrel.client.call import LINE, NOT_YET, Call, HangUp, Reply, Stream
from kestrel.client.errors import BadReply, ConnectionFailed
from kestrel.protocols.buffer import ReceiveBuffer
from tests.client.reading import items_of, value_of


def line_and_block(steps: list[bytes]) -> Reply[bytes]:
    """A reply of a length on a line and so many bytes; it notes each time that it is gone on with."""
    line = yield LINE
    steps.append(line)
    block = yield int(line)
    steps.append(block)
    return block


def block_call() -> Call[bytes]:
    return Call(b"", line_and_block([]))


def item_call() -> Call[bytes | None]:
    return block_call().then(lambda block: block or None)


def test_a_value_comes_with_the_last_byte_of_its_reply() -> None:
    assert value_of(block_call, b"5\r\nhello") == b"hello"


def test_a_line_feed_within_a_block_is_data() -> None:
    assert value_of(block_call, b"4\r\n\r\na\n") == b"\r\na\n"


def test_a_reply_is_gone_on_with_only_when_what_it_wants_is_there() -> None:
    steps: list[bytes] = []
    call = Call(b"", line_and_block(steps))
    buffer = ReceiveBuffer()
    for piece in (b"5", b"\r", b"\n", b"hell"):
        buffer.receive(piece)
        assert call.read(buffer) is NOT_YET
    assert steps == [b"5"]


def test_a_line_may_be_as_long_as_the_bound_and_no_longer() -> None:
    for line, is_taken in ((b"0005\r\n", True), (b"00005\r\n", False)):
        call = Call(b"", line_and_block([]), max_line_bytes=5)
        buffer = ReceiveBuffer()
        buffer.receive(line + b"hello")
        if is_taken:
            assert call.read(buffer) == b"hello"
        else:
            with pytest.raises(BadReply, match="longer than 5 bytes"):
                call.read(buffer)


def test_a_line_without_an_end_is_given_up_when_it_passes_the_bound() -> None:
    call = Call(b"", line_and_block([]), max_line_bytes=5)
    buffer = ReceiveBuffer()
    buffer.receive(b"00000")
    assert call.read(buffer) is NOT_YET
    buffer.receive(b"0")
    with pytest.raises(BadReply):
        call.read(buffer)


def test_a_line_that_ends_in_a_bare_line_feed_is_no_reply() -> None:
    buffer = ReceiveBuffer()
    buffer.receive(b"5\nhello")
    with pytest.raises(BadReply):
        block_call().read(buffer)


def test_a_server_that_hangs_up_in_place_of_a_reply_has_failed() -> None:
    with pytest.raises(ConnectionFailed):
        block_call().connection_ended()
    with pytest.raises(ConnectionFailed):
        item_call().connection_ended()


def test_hanging_up_is_an_answer_to_some_requests() -> None:
    def nothing() -> Reply[None]:
        yield LINE

    assert HangUp(b"", nothing()).then(lambda _: "done").connection_ended() == "done"


def test_a_call_with_another_value_sends_and_waits_the_same() -> None:
    call = Call(b"get work/t=50\r\n", line_and_block([]), wait_ms=50)
    other = call.then(len)
    assert (other.request, other.wait_ms) == (call.request, call.wait_ms)
    assert value_of(lambda: block_call().then(len), b"5\r\nhello") == 5


def test_a_stream_gives_values_until_its_end() -> None:
    def stream() -> Stream[bytes]:
        return Stream(b"", item_call, wait_ms=0)

    assert items_of(stream, b"1\r\na2\r\nbc0\r\n") == [b"a", b"bc"]


def test_a_stream_that_is_over_stays_over_and_takes_nothing_more() -> None:
    stream = Stream(b"", item_call, wait_ms=0)
    buffer = ReceiveBuffer()
    buffer.receive(b"0\r\n1\r\na")
    assert [stream.read(buffer), stream.read(buffer)] == [None, None]
    assert buffer.size == 4
    stream.connection_ended()


def test_a_stream_whose_server_hangs_up_before_its_end_has_failed() -> None:
    stream = Stream(b"", item_call, wait_ms=0)
    buffer = ReceiveBuffer()
    buffer.receive(b"1\r\na")
    assert stream.read(buffer) == b"a"
    with pytest.raises(ConnectionFailed):
        stream.connection_ended()
