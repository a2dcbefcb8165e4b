"""The text protocol of the load tools."""

from __future__ import annotations

from typing import Any

import pytest

from kestrel.client.call import NOT_YET, Call
from kestrel.client.errors import BadReply, OpenReadsError, RequestError, ServerError
from kestrel.client.thrift import OpenRead
from kestrel.errors import BadQueueName
from kestrel.load.load_dialects import QueueState, TextLoadDialect
from kestrel.protocols.buffer import ReceiveBuffer

CALLS = TextLoadDialect()
READ = OpenRead(b"x")


def answer(call: Call[Any], reply: bytes) -> Any:
    """Return the value of a reply that arrives byte by byte."""
    buffer = ReceiveBuffer()
    for place in range(len(reply)):
        assert call.read(buffer) is NOT_YET
        buffer.receive(reply[place : place + 1])
    return call.read(buffer)


@pytest.mark.parametrize(
    ("call", "request_", "reply", "value"),
    [
        (lambda: CALLS.put(b"q", b"hello"), b"put q:\nhello\n\n", b"+1\n", True),
        (lambda: CALLS.put(b"q", b"hello"), b"put q:\nhello\n\n", b"+0\n", False),
        (lambda: CALLS.take(b"q", 250), b"get q 250\n", b":hello\n", b"hello"),
        (lambda: CALLS.take(b"q", 0), b"get q 0\n", b"*\n", None),
        (lambda: CALLS.open(b"q", 1, 2), b"get q 1\n", b":x\n", READ),
        (lambda: CALLS.confirm(b"q", READ), b"confirm q 1\n", b"+1\n", None),
        (lambda: CALLS.finish(b"q"), b"peek q\n", b"*\n", None),
        (lambda: CALLS.flush(b"q"), b"flush q\n", b"+0\n", None),
        (lambda: CALLS.delete(b"q"), b"delete q\n", b"+0\n", None),
        (lambda: CALLS.look(b"q"), b"dump_stats q\n", b"*\n", QueueState(False)),
        (
            lambda: CALLS.look(b"q"),
            b"dump_stats q\n",
            b":q items 3\n:q logsize 120\n:q open_transactions 2\n*\n",
            QueueState(True, 5, 120),
        ),
    ],
)
def test_every_request_and_its_reply(call: Any, request_: bytes, reply: bytes, value: object) -> None:
    made = call()
    assert made.request == request_
    assert answer(made, reply) == value


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"-Not that many transactions open.\n", OpenReadsError),
        (b"-ReadOnly\n", ServerError),
        (b"STORED\r\n", BadReply),
        (b"+many\n", BadReply),
        (b"\n", BadReply),
    ],
)
def test_error_or_invalid_reply_is_raised(reply: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        answer(CALLS.confirm(b"q", READ), reply)


def test_invalid_argument_is_not_sent() -> None:
    with pytest.raises(RequestError):
        CALLS.put(b"q", b"two\nlines")
    with pytest.raises(RequestError):
        CALLS.abort(b"q", READ)
    with pytest.raises(BadQueueName):
        CALLS.take(b"q/open", 0)
