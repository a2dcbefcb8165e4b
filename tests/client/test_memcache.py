"""The memcache protocol of the client: bytes of requests, values of replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kestrel.client import memcache
from kestrel.client.call import Call, Stream
from kestrel.client.errors import BadReply, OpenReadsError, Refused, RequestError, ServerError
from kestrel.client.memcache import MemcacheCalls
from kestrel.errors import BadQueueName
from kestrel.protocols.buffer import ReceiveBuffer
from tests.client.reading import BEHIND, answered, items_of, value_of

CALLS = MemcacheCalls(max_item_bytes=100, max_line_bytes=50)

EVERY_CALL: dict[str, tuple[Callable[[], Call[Any]], bytes, bytes, object]] = {
    # name: call, request, reply, value
    "put": (lambda: CALLS.put(b"work", b"hello"), b"set work 0 0 5\r\nhello\r\n", b"STORED\r\n", True),
    "put, full": (lambda: CALLS.put(b"work", b"", 30), b"set work 0 30 0\r\n\r\n", b"NOT_STORED\r\n", False),
    "get": (lambda: CALLS.get(b"work"), b"get work\r\n", b"VALUE work 0 5\r\nhello\r\nEND\r\n", b"hello"),
    "get, nothing": (lambda: CALLS.get(b"work"), b"get work\r\n", b"END\r\n", None),
    "get, empty item": (lambda: CALLS.get(b"work"), b"get work\r\n", b"VALUE work 0 0\r\n\r\nEND\r\n", b""),
    "get, item of line ends": (
        lambda: CALLS.get(b"work", 250),
        b"get work/t=250\r\n",
        b"VALUE work 0 7\r\n\r\nEND\r\n\r\nEND\r\n",
        b"\r\nEND\r\n",
    ),
    "open": (
        lambda: CALLS.get(b"work", 5000, opens=True, closes=True),
        b"get work/t=5000/close/open\r\n",
        b"VALUE work/t=5000/close/open 0 1\r\na\r\nEND\r\n",
        b"a",
    ),
    "open, the reply names the queue": (
        lambda: CALLS.get(b"work", 50, opens=True),
        b"get work/t=50/open\r\n",
        b"VALUE work 0 1\r\na\r\nEND\r\n",
        b"a",
    ),
    "abort": (lambda: CALLS.get(b"work", aborts=True), b"get work/abort\r\n", b"END\r\n", None),
    "peek": (lambda: CALLS.get(b"work", peeks=True), b"get work/peek\r\n", b"VALUE work 0 1\r\na\r\nEND\r\n", b"a"),
    "confirm": (lambda: CALLS.confirm(b"work", 3), b"confirm work 3\r\n", b"END\r\n", None),
    "flush": (lambda: CALLS.flush(b"work"), b"flush work\r\n", b"END\r\n", None),
    "flush_all": (CALLS.flush_all, b"flush_all\r\n", b"Flushed all queues.\r\n", None),
    "flush_expired": (lambda: CALLS.flush_expired(b"work"), b"flush_expired work\r\n", b"12\r\n", 12),
    "flush_all_expired": (CALLS.flush_all_expired, b"flush_all_expired\r\n", b"0\r\n", 0),
    "delete": (lambda: CALLS.delete(b"work+x"), b"delete work+x\r\n", b"DELETED\r\n", None),
    "stats": (
        CALLS.stats,
        b"stats\r\n",
        b"STAT uptime 61\r\nSTAT queue_\xc3\xa4\xff_children a,b\r\nSTAT queue_a_children \r\nEND\r\n",
        {"uptime": "61", "queue_ä\udcff_children": "a,b", "queue_a_children": ""},
    ),
    "dump_stats": (
        lambda: CALLS.dump_stats(b"a'b", b"none"),
        b"dump_stats a'b none\r\n",
        b"queue 'a'b' {\r\n  items=3\r\n  bytes=15\r\n}\r\nqueue 'none' {\r\n  \r\n}\r\nEND\r\n",
        {b"a'b": {"items": "3", "bytes": "15"}, b"none": {}},
    ),
    "dump_config": (CALLS.dump_config, b"dump_config\r\n", b"END\r\n", {}),
    "status": (CALLS.status, b"status\r\n", b"READONLY\r\n", "READONLY"),
    "set_status": (lambda: CALLS.set_status("ReadOnly"), b"status ReadOnly\r\n", b"END\r\n", None),
    "version": (CALLS.version, b"version\r\n", b"VERSION 1.2.3\r\n", "1.2.3"),
    "reload": (CALLS.reload, b"reload\r\n", b"Reloaded config.\r\n", None),
}


@pytest.mark.parametrize(("make_call", "request_", "reply", "value"), EVERY_CALL.values(), ids=EVERY_CALL)
def test_every_request_and_its_reply(
    make_call: Callable[[], Call[Any]], request_: bytes, reply: bytes, value: object
) -> None:
    assert make_call().request == request_
    assert value_of(make_call, reply) == value


MAKERS = [make_call for make_call, _, _, _ in EVERY_CALL.values()] + [CALLS.shutdown]


@pytest.mark.parametrize("make_call", MAKERS)
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"SERVER_ERROR disk full\r\n", ServerError),
        (b"CLIENT_ERROR expiry is not a number\r\n", RequestError),
        (b"ERROR\r\n", OpenReadsError),
    ],
)
def test_error_reply_is_raised_and_consumed_by_every_call(
    make_call: Callable[[], Call[Any]], reply: bytes, error: type[Refused]
) -> None:
    buffer = ReceiveBuffer()
    buffer.receive(reply + BEHIND)
    with pytest.raises(error) as raised:
        make_call().read(buffer)
    assert type(raised.value) is error
    assert buffer.take(len(BEHIND)) == BEHIND


def test_error_has_the_reason_of_the_server() -> None:
    with pytest.raises(ServerError, match=r"^the server is ReadOnly$"):
        answered(CALLS.flush(b"work"), b"SERVER_ERROR the server is ReadOnly\r\n")


@pytest.mark.parametrize("make_call", MAKERS)
def test_invalid_reply_is_rejected_and_not_shown(make_call: Callable[[], Call[Any]]) -> None:
    for reply in (b"HTTP/1.1 400 Bad Request\r\n", b"\r\n", b"\xff\xfe\r\n", b"x" * 51):
        with pytest.raises(BadReply) as raised:
            answered(make_call(), reply)
        assert "HTTP" not in str(raised.value)  # it may be an item


@pytest.mark.parametrize(
    "reply",
    [
        b"VALUE other 0 1\r\n",
        b"VALUE work 0 -1\r\n",
        b"VALUE work 0 1 7\r\n",
        b"VALUE work 0\r\n",
        b"VALUE work 0 101\r\n",
        b"VALUE work 0 1\r\nab\r\nEND\r\n",
        b"VALUE work 0 1\r\na\r\nVALUE\r\n",
    ],
)
def test_item_with_an_invalid_header_or_end_is_rejected(reply: bytes) -> None:
    with pytest.raises(BadReply):
        answered(CALLS.get(b"work"), reply)


@pytest.mark.parametrize(
    "reply",
    [b"queue 'a' {\r\nEND\r\n", b"  a=b\r\nEND\r\n", b"queue 'a' {\r\nx\r\nEND\r\n", b"queue a {\r\n}\r\nEND\r\n"],
)
def test_dump_with_invalid_lines_is_rejected(reply: bytes) -> None:
    with pytest.raises(BadReply):
        answered(CALLS.dump_stats(), reply)


def test_listing_that_is_too_long_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memcache, "MAX_LISTING_BYTES", 64 * 4)
    lines = b"STAT a 1\r\n" * 3
    assert answered(CALLS.stats(), lines + b"END\r\n") == {"a": "1"}
    with pytest.raises(BadReply, match="listing"):
        answered(CALLS.stats(), lines + b"STAT a 1\r\n" * 2)


def test_monitor_returns_items_until_its_end() -> None:
    def monitor() -> Stream[bytes]:
        return CALLS.monitor(b"work", 10, 2)

    assert monitor().request == b"monitor work 10 2\r\n"
    assert monitor().wait_ms == 10_000
    assert CALLS.monitor(b"work", 10).request == b"monitor work 10\r\n"
    reply = b"VALUE work 0 1\r\na\r\nEND\r\nVALUE work 0 0\r\n\r\nEND\r\nEND\r\n"
    assert items_of(monitor, reply) == [b"a", b""]


def test_monitor_may_end_with_an_error() -> None:
    buffer = ReceiveBuffer()
    buffer.receive(b"VALUE work 0 1\r\na\r\nEND\r\nSERVER_ERROR disk failed\r\n")
    stream = CALLS.monitor(b"work", 10)
    assert stream.read(buffer) == b"a"
    with pytest.raises(ServerError):
        stream.read(buffer)


def test_closing_answers_a_shutdown() -> None:
    assert CALLS.shutdown().request == b"shutdown\r\n"
    CALLS.shutdown().connection_ended()


def test_wait_extends_the_time_for_the_reply() -> None:
    assert [CALLS.get(b"work", 250).wait_ms, CALLS.get(b"work").wait_ms, CALLS.get(b"work", -1).wait_ms] == [250, 0, 0]


NAMING: list[Callable[[bytes], object]] = [
    lambda name: CALLS.put(name, b""),
    CALLS.get,
    lambda name: CALLS.monitor(name, 1),
    lambda name: CALLS.confirm(name, 1),
    CALLS.flush,
    CALLS.flush_expired,
    CALLS.delete,
    CALLS.dump_stats,
    CALLS.dump_config,
]


@pytest.mark.parametrize("make_call", NAMING)
@pytest.mark.parametrize("name", [b"", b"a b", b"a\r\nflush_all", b"a\n", b"a/open", b"a.b", b"x" * 201])
def test_invalid_queue_name_is_not_sent(make_call: Callable[[bytes], object], name: bytes) -> None:
    with pytest.raises(BadQueueName):
        make_call(name)


@pytest.mark.parametrize("status", ["", "Up\r\nflush_all", "Read Only", "Üp"])
def test_invalid_status_is_not_sent(status: str) -> None:
    with pytest.raises(RequestError):
        CALLS.set_status(status)


def test_invalid_argument_is_not_sent() -> None:
    with pytest.raises(RequestError, match="limit=100"):
        CALLS.put(b"work", b"x" * 101)
    with pytest.raises(RequestError, match="is out of range"):
        CALLS.put(b"work", b"", 1 << 31)
    with pytest.raises(RequestError, match="is out of range"):
        CALLS.get(b"work", 1 << 31)
    with pytest.raises(RequestError, match="do not go together"):
        CALLS.get(b"work", opens=True, peeks=True)
