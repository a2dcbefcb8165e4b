"""The use of the socket by a blocking connection."""

from __future__ import annotations

import os
import ssl
from typing import Any, cast

import pytest

from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import CannotConnect, ConnectionFailed
from kestrel.client.memcache import MemcacheCalls

CALLS = MemcacheCalls()


class Interrupt(BaseException):
    """The exception of a signal handler."""


class NotedSocket:
    """A socket that returns the given bytes and records the calls."""

    def __init__(
        self, reply: bytes = b"", send_error: BaseException | None = None, receive_error: OSError | None = None
    ) -> None:
        self.reply = reply
        self.send_error = send_error
        self.receive_error = receive_error or TimeoutError("timed out")
        self.timeout_s: float | None = None
        self.sent = b""
        self.notes: list[tuple[str, float | None]] = []

    def settimeout(self, seconds: float) -> None:
        self.timeout_s = seconds

    def send(self, data: bytes) -> int:
        self.notes.append(("send", self.timeout_s))
        self.sent += data
        if self.send_error is not None:
            raise self.send_error
        return len(data)

    def recv(self, size: int) -> bytes:
        if ("close", None) in self.notes:
            raise OSError("the socket has been closed")
        self.notes.append(("receive", self.timeout_s))
        if not self.reply:
            raise self.receive_error
        reply, self.reply = self.reply, b""
        return reply

    def close(self) -> None:
        self.notes.append(("close", None))


def connected(socket: NotedSocket) -> BlockingConnection:
    return BlockingConnection(cast(Any, socket), timeout_s=10)


def test_wait_extends_the_timeout_of_the_reply() -> None:
    socket = NotedSocket(b"END\r\n")
    connected(socket).ask(CALLS.get(b"work", 2500))
    assert socket.notes == [("send", 10), ("receive", 12.5)]


def test_each_item_of_a_monitor_may_take_its_duration() -> None:
    socket = NotedSocket(b"VALUE work 0 1\r\na\r\nEND\r\n")
    items = connected(socket).stream(CALLS.monitor(b"work", 5))
    assert next(items) == b"a"
    with pytest.raises(ConnectionFailed):
        next(items)
    assert socket.notes == [("send", 10), ("receive", 15), ("receive", 15), ("close", None)]


def test_no_reply_is_read_after_a_send_timeout() -> None:
    socket = NotedSocket(b"STORED\r\n", TimeoutError("timed out"))
    connection = connected(socket)
    with pytest.raises(CannotConnect):
        connection.ask(CALLS.put(b"work", b"a"))
    assert not connection.is_usable
    assert ("receive", 10) not in socket.notes


def test_failure_closes_the_connection() -> None:
    socket = NotedSocket()
    connection = connected(socket)
    with pytest.raises(ConnectionFailed):
        connection.ask(CALLS.version())
    assert not connection.is_usable
    assert socket.notes[-1] == ("close", None)


@pytest.mark.parametrize("how", ["ask", "ask_all", "stream"])
def test_interrupted_request_closes_the_connection(how: str) -> None:
    socket = NotedSocket(b"STORED\r\n", Interrupt())
    connection = connected(socket)
    ask = {
        "ask": lambda: connection.ask(CALLS.put(b"work", b"a")),
        "ask_all": lambda: list(connection.ask_all([CALLS.put(b"work", b"a")])),
        "stream": lambda: list(connection.stream(CALLS.monitor(b"work", 5))),
    }[how]
    with pytest.raises(Interrupt):
        ask()
    assert not connection.is_usable
    assert socket.notes[-1] == ("close", None)


def test_connection_with_pending_replies_is_not_usable() -> None:
    connection = connected(NotedSocket(b"STORED\r\nSTORED\r\n"))
    answers = connection.ask_all([CALLS.put(b"work", b"a"), CALLS.put(b"work", b"b")])
    assert connection.is_usable
    next(answers)
    assert not connection.is_usable
    assert list(answers) == [True]
    assert connection.is_usable


def test_each_piece_of_a_large_request_has_the_whole_timeout() -> None:
    socket = NotedSocket(b"STORED\r\n")
    call = CALLS.put(b"work", b"x" * 100_000)
    connected(socket).ask(call)
    assert socket.sent == call.request
    assert socket.notes.count(("send", 10)) == 7
    assert socket.notes[-1] == ("receive", 10)


def test_received_items_are_discarded_by_close() -> None:
    connection = connected(NotedSocket(b"VALUE work 0 1\r\na\r\nEND\r\n" * 2))
    items = connection.stream(CALLS.monitor(b"work", 5))
    assert next(items) == b"a"
    connection.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        next(items)


def test_forked_process_cannot_use_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    socket = NotedSocket(b"VERSION 1\r\n")
    connection = connected(socket)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(CannotConnect):
        connection.ask(CALLS.version())
    assert not connection.is_at_rest()
    assert socket.notes == [("close", None)]


def alert() -> ssl.SSLError:
    """Return the error for a certificate that the server refuses, as the ssl module raises it."""
    error = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")
    error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    return error


def test_tls_alert_before_the_first_reply_means_not_carried_out() -> None:
    socket = NotedSocket(receive_error=alert())
    with pytest.raises(CannotConnect, match="certificate required"):
        connected(socket).ask(CALLS.put(b"work", b"item", 0))


def test_tls_alert_after_a_reply_leaves_the_result_unknown() -> None:
    socket = NotedSocket(b"END\r\n", receive_error=alert())
    connection = connected(socket)
    connection.ask(CALLS.get(b"work", 0))
    with pytest.raises(ConnectionFailed) as raised:
        connection.ask(CALLS.put(b"work", b"item", 0))
    assert not isinstance(raised.value, CannotConnect)
