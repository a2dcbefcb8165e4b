"""The thrift service of the client: bytes of requests, values of replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kestrel.client.call import NOT_YET, Call
from kestrel.client.errors import BadReply, Refused, RequestError, ServerError
from kestrel.client.thrift import OpenRead, RangeItem, ThriftCalls
from kestrel.errors import BadQueueName
from kestrel.protocols import thrift_binary as binary
from kestrel.protocols.buffer import ReceiveBuffer
from kestrel.protocols.codec import QueueInfo
from tests.client.reading import BEHIND, answered, value_of

QUEUE = b"\x0b\0\1\0\0\0\4work"

ITEMS = (
    b"\x0f\0\0\x0c\0\0\0\2\x0b\0\1\0\0\0\5hello\x0a\0\2\0\0\0\0\0\0\0\7\0\x0a\0\2\0\0\0\0\0\0\0\x08\x0b\0\1\0\0\0\0\0\0"
)

INFO = (
    b"\x0c\0\0"
    b"\x0b\0\1\0\0\0\1a"
    b"\x0a\0\2\0\0\0\0\0\0\0\1"
    b"\x0a\0\3\0\0\0\0\0\0\0\2"
    b"\x0a\0\4\0\0\0\0\0\0\0\3"
    b"\x0a\0\5\0\0\0\0\0\0\0\4"
    b"\x08\0\6\0\0\0\5"
    b"\x08\0\7\0\0\0\6"
    b"\0\0"
)

EVERY_CALL: dict[str, tuple[Callable[[ThriftCalls], Call[Any]], bytes, bytes, bytes, object]] = {
    # name: call, method, arguments, result, value
    "put": (
        lambda calls: calls.put(b"work", [b"hello", b""], 30_000),
        b"put",
        QUEUE + b"\x0f\0\2\x0b\0\0\0\2\0\0\0\5hello\0\0\0\0" + b"\x08\0\3\0\0\x75\x30" + b"\0",
        b"\x08\0\0\0\0\0\2\0",
        2,
    ),
    "get": (
        lambda calls: calls.get(b"work", 10, 500, 60_000),
        b"get",
        QUEUE + b"\x08\0\2\0\0\0\x0a" + b"\x08\0\3\0\0\1\xf4" + b"\x08\0\4\0\0\xea\x60" + b"\0",
        ITEMS,
        [OpenRead(b"hello", 7), OpenRead(b"", 8)],
    ),
    "get, nothing": (
        lambda calls: calls.get(b"work", 1),
        b"get",
        QUEUE + b"\x08\0\2\0\0\0\1" + b"\x08\0\3\0\0\0\0" + b"\x08\0\4\0\0\0\0" + b"\0",
        b"\x0f\0\0\0\0\0\0\0\0",
        [],
    ),
    "list_queues": (
        lambda calls: calls.list_queues(),
        b"list_queues",
        b"\0",
        b"\x0f\0\0\x0b\0\0\0\2\0\0\0\1a\0\0\0\2bc\0",
        [b"a", b"bc"],
    ),
    "confirm": (
        lambda calls: calls.confirm(b"work", [7, 8]),
        b"confirm",
        QUEUE + b"\x0e\0\2\x0a\0\0\0\2\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\x08" + b"\0",
        b"\x08\0\0\0\0\0\2\0",
        2,
    ),
    "abort": (
        lambda calls: calls.abort(b"work", [7]),
        b"abort",
        QUEUE + b"\x0e\0\2\x0a\0\0\0\1\0\0\0\0\0\0\0\7" + b"\0",
        b"\x08\0\0\0\0\0\0\0",
        0,
    ),
    "peek": (lambda calls: calls.peek(b"work"), b"peek", QUEUE + b"\0", INFO, QueueInfo(b"a", 1, 2, 3, 4, 5, 6)),
    "peek, nothing": (
        lambda calls: calls.peek(b"work"),
        b"peek",
        QUEUE + b"\0",
        b"\x0c\0\0\x08\0\x63\0\0\0\1\0\0",
        QueueInfo(),
    ),
    "flush": (lambda calls: calls.flush(b"work"), b"flush_queue", QUEUE + b"\0", b"\0", None),
    "flush all": (lambda calls: calls.flush_all(), b"flush_all_queues", b"\0", b"\0", None),
    "delete": (lambda calls: calls.delete(b"work"), b"delete_queue", QUEUE + b"\0", b"\0", None),
    "status": (lambda calls: calls.status(), b"current_status", b"\0", b"\x08\0\0\0\0\0\2\0", "ReadOnly"),
    "status, unknown": (
        lambda calls: calls.status(),
        b"current_status",
        b"\0",
        b"\x08\0\0\0\0\0\x09\0",
        "NotConfigured",
    ),
    "set status": (lambda calls: calls.set_status("Up"), b"set_status", b"\x08\0\1\0\0\0\3\0", b"\0", None),
    "version": (lambda calls: calls.version(), b"get_version", b"\0", b"\x0b\0\0\0\0\0\x051.2.3\0", "1.2.3"),
}


MAKERS = [(make_call, method) for make_call, method, _, _, _ in EVERY_CALL.values()]


def message(method: bytes, type_: int, body: bytes, number: int = 1) -> bytes:
    return binary.frame(binary.header(method, type_, number), body)


@pytest.mark.parametrize(
    ("make_call", "method", "arguments", "result", "value"), EVERY_CALL.values(), ids=list(EVERY_CALL)
)
def test_every_request_and_its_reply(
    make_call: Callable[[ThriftCalls], Call[Any]], method: bytes, arguments: bytes, result: bytes, value: object
) -> None:
    header = b"\x80\1\0\1" + len(method).to_bytes(4, "big") + method + b"\0\0\0\1"
    size = len(header) + len(arguments)
    assert make_call(ThriftCalls()).request == size.to_bytes(4, "big") + header + arguments
    assert value_of(lambda: make_call(ThriftCalls()), message(method, binary.REPLY, result)) == value


@pytest.mark.parametrize(("make_call", "method"), MAKERS)
@pytest.mark.parametrize(
    ("type_", "error"), [(6, ServerError), (1, RequestError), (2, RequestError), (7, RequestError), (0, RequestError)]
)
def test_refusal_is_raised_and_consumed_by_every_call(
    make_call: Callable[[ThriftCalls], Call[Any]], method: bytes, type_: int, error: type[Refused]
) -> None:
    buffer = ReceiveBuffer()
    exception = binary.application_exception(type_, "the server is Quiescent")
    buffer.receive(message(method, binary.EXCEPTION, exception) + BEHIND)
    with pytest.raises(error, match=r"^the server is Quiescent$"):
        make_call(ThriftCalls()).read(buffer)
    assert buffer.take(len(BEHIND)) == BEHIND


@pytest.mark.parametrize(("make_call", "method"), MAKERS)
def test_invalid_reply_is_rejected(make_call: Callable[[ThriftCalls], Call[Any]], method: bytes) -> None:
    for reply in (
        b"STORED\r\n",  # another protocol
        b"\xff\xff\xff\xff",  # a frame of negative length
        b"\0\0\0\0",  # one that is empty
        message(method, binary.REPLY, b"\0", number=2),  # the reply to another request
        message(b"other", binary.REPLY, b"\0"),  # the reply of another method
        message(method, binary.CALL, b"\0"),  # a request
        message(method, binary.REPLY, b""),  # no result
        message(method, binary.REPLY, b"\2\0\0\1\0\0"),  # bytes behind a result of another type
        message(method, binary.EXCEPTION, b"\x0b\0\1"),  # an exception that is cut short
    ):
        with pytest.raises(BadReply):
            answered(make_call(ThriftCalls(max_frame_bytes=1000)), reply)


@pytest.mark.parametrize("items", [b"\3\0\0\0\1\0\0", b"\x0c\x7f\xff\xff\xff\0"], ids=["bytes", "more than the frame"])
def test_invalid_list_of_items_is_rejected(items: bytes) -> None:
    with pytest.raises(BadReply):
        answered(ThriftCalls().get(b"work", 1), message(b"get", binary.REPLY, b"\x0f\0\0" + items))


def test_too_long_frame_is_rejected_before_completion() -> None:
    call, buffer = ThriftCalls(max_frame_bytes=100).version(), ReceiveBuffer()
    buffer.receive((100).to_bytes(4, "big"))
    assert call.read(buffer) is NOT_YET
    with pytest.raises(BadReply, match="limit=100"):
        answered(ThriftCalls(max_frame_bytes=100).version(), (101).to_bytes(4, "big"))


def test_request_that_is_too_long_is_rejected() -> None:
    with pytest.raises(RequestError, match="limit=100"):
        ThriftCalls(max_frame_bytes=100).put(b"work", [b"x" * 100])


def test_requests_of_a_connection_are_numbered() -> None:
    calls = ThriftCalls()
    first, second = calls.version(), calls.version()
    buffer = ReceiveBuffer()
    for number, version in ((1, b"a"), (2, b"b")):
        result = binary.binary_field(0, version) + binary.END
        buffer.receive(message(b"get_version", binary.REPLY, result, number))
    assert (first.read(buffer), second.read(buffer)) == ("a", "b")


def test_wait_extends_the_time_for_the_reply() -> None:
    assert ThriftCalls().get(b"work", 1, 250).wait_ms == 250
    assert ThriftCalls().get(b"work", 1, -1).wait_ms == 0


@pytest.mark.parametrize("name", [b"", b"a b", b"a/b", b"x" * 201])
def test_invalid_queue_name_is_not_sent(name: bytes) -> None:
    calls = ThriftCalls()
    for make_call in (
        lambda: calls.put(name, []),
        lambda: calls.get(name, 1),
        lambda: calls.confirm(name, []),
        lambda: calls.abort(name, []),
        lambda: calls.peek(name),
        lambda: calls.flush(name),
        lambda: calls.delete(name),
    ):
        with pytest.raises(BadQueueName):
            make_call()


def test_invalid_argument_is_not_sent() -> None:
    with pytest.raises(RequestError, match="is out of range"):
        ThriftCalls().get(b"work", 1, 1 << 31)
    for status in ("WriteAvoid", "NotConfigured", "down"):
        with pytest.raises(RequestError, match="no status"):
            ThriftCalls().set_status(status)


def test_item_that_is_too_large_is_not_sent() -> None:
    calls = ThriftCalls(max_item_bytes=5)
    calls.put(b"work", [b"x" * 5])
    with pytest.raises(RequestError, match="item too large; limit=5"):
        calls.put(b"work", [b"a", b"x" * 6])


@pytest.mark.parametrize(
    "words", ["item too large; limit=9", "frame too large; limit=9", "too many items in one call; limit=9"]
)
def test_refusals_of_large_requests_are_request_errors(words: str) -> None:
    exception = binary.application_exception(binary.INTERNAL_ERROR, words)
    with pytest.raises(RequestError, match=words):
        answered(ThriftCalls().put(b"work", [b"a"]), message(b"put", binary.EXCEPTION, exception))


def test_reply_with_too_many_items_is_rejected() -> None:
    items = binary.list_field(0, binary.STRUCT, 2) + binary.END * 2 + binary.END
    assert len(answered(ThriftCalls().get(b"work", 2), message(b"get", binary.REPLY, items))) == 2
    with pytest.raises(BadReply, match="2 items; limit=1"):
        answered(ThriftCalls().get(b"work", 1), message(b"get", binary.REPLY, items))


@pytest.mark.parametrize("count", [-1, 2])
@pytest.mark.parametrize(
    ("method", "make_call"),
    [
        (b"put", lambda: ThriftCalls().put(b"work", [b"a"])),
        (b"confirm", lambda: ThriftCalls().confirm(b"work", [7])),
        (b"abort", lambda: ThriftCalls().abort(b"work", [7])),
    ],
)
def test_reply_with_an_impossible_count_is_rejected(
    method: bytes, make_call: Callable[[], Call[int]], count: int
) -> None:
    with pytest.raises(BadReply, match=f"a count of {count}; limit=1"):
        answered(make_call(), message(method, binary.REPLY, binary.i32_field(0, count) + binary.END))


def test_status_is_case_insensitive() -> None:
    requests = {ThriftCalls().set_status(status).request for status in ("ReadOnly", "readonly", "READONLY")}
    assert len(requests) == 1


ID, ITS_DATA = binary.i64_field(1, 7), binary.binary_field(2, b"hello")
ADDED, EXPIRES = binary.i64_field(3, 1000), binary.i64_field(4, 2000)


@pytest.mark.parametrize(
    ("fields", "item"),
    [
        ([ID, ITS_DATA, ADDED, EXPIRES], RangeItem(7, b"hello", 1000, 2000)),
        ([EXPIRES, ADDED, ITS_DATA, ID], RangeItem(7, b"hello", 1000, 2000)),
        ([ID, ITS_DATA, ADDED, EXPIRES, binary.i32_field(5, 1)], RangeItem(7, b"hello", 1000, 2000)),
        ([ID, binary.i64_field(2, 5), ITS_DATA, ADDED, EXPIRES], RangeItem(7, b"hello", 1000, 2000)),
        ([ID, binary.binary_field(2, b"")], RangeItem(7, b"", 0, 0)),
        ([ID], RangeItem(7, b"", 0, 0)),
    ],
    ids=["usual", "reversed", "more", "other type", "no times", "no data"],
)
def test_range_items_accept_any_field_order(fields: list[bytes], item: RangeItem) -> None:
    second = b"".join([binary.i64_field(1, 8), ITS_DATA, ADDED, EXPIRES, binary.END])
    items = binary.list_field(0, binary.STRUCT, 2) + b"".join(fields) + binary.END + second + binary.END
    call = ThriftCalls().read_range(b"work", b"spark", 7, 9, 0)
    found = answered(call, message(b"read_range", binary.REPLY, items))
    assert found == [item, RangeItem(8, b"hello", 1000, 2000)]


@pytest.mark.parametrize("data", [b"\x0b\0\2\xff\xff\xff\xff", b"\x0b\0\2\0\0\1\0abc", b"\x0b\0"])
def test_damaged_items_of_a_reply_are_rejected(data: bytes) -> None:
    items = binary.list_field(0, binary.STRUCT, 1) + ID + data + ADDED + EXPIRES + binary.END * 2
    with pytest.raises(BadReply):
        answered(ThriftCalls().read_range(b"work", b"spark", 7, 9, 0), message(b"read_range", binary.REPLY, items))
    opened = binary.list_field(0, binary.STRUCT, 1) + data.replace(b"\2", b"\1", 1) + ID + binary.END * 2
    with pytest.raises(BadReply):
        answered(ThriftCalls().get(b"work", 1), message(b"get", binary.REPLY, opened))
