"""A blocking connection, as far as its socket shows it."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import CannotConnect, ConnectionFailed
from kestrel.client.memcache import MemcacheCalls

CALLS = MemcacheCalls()


class Interrupt(BaseException):
    """What a signal handler raises."""


class NotedSocket:
    """A socket that gives these bytes, and notes what is done to it."""

    def __init__(self, reply: bytes = b"", send_error: BaseException | None = None) -> None:
        self.reply = reply
        self.send_error = send_error
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
            raise TimeoutError("timed out")
        reply, self.reply = self.reply, b""
        return reply

    def close(self) -> None:
        self.notes.append(("close", None))


def connected(socket: NotedSocket) -> BlockingConnection:
    return BlockingConnection(cast(Any, socket), timeout_s=10)


def test_a_reply_may_take_as_much_longer_as_the_server_was_asked_to_wait() -> None:
    socket = NotedSocket(b"END\r\n")
    connected(socket).ask(CALLS.get(b"work", 2500))
    assert socket.notes == [("send", 10), ("receive", 12.5)]


def test_each_item_of_a_monitor_may_take_as_long_as_the_monitor() -> None:
    socket = NotedSocket(b"VALUE work 0 1\r\na\r\nEND\r\n")
    items = connected(socket).stream(CALLS.monitor(b"work", 5))
    assert next(items) == b"a"
    with pytest.raises(ConnectionFailed):
        next(items)
    assert socket.notes == [("send", 10), ("receive", 15), ("receive", 15), ("close", None)]


def test_a_server_that_took_too_long_to_read_is_not_listened_to() -> None:
    socket = NotedSocket(b"STORED\r\n", TimeoutError("timed out"))
    connection = connected(socket)
    with pytest.raises(CannotConnect):
        connection.ask(CALLS.put(b"work", b"a"))
    assert not connection.is_usable
    assert ("receive", 10) not in socket.notes


def test_after_any_failure_a_connection_is_closed() -> None:
    socket = NotedSocket()
    connection = connected(socket)
    with pytest.raises(ConnectionFailed):
        connection.ask(CALLS.version())
    assert not connection.is_usable
    assert socket.notes[-1] == ("close", None)


@pytest.mark.parametrize("how", ["ask", "ask_all", "stream"])
def test_an_interrupted_request_closes_the_connection(how: str) -> None:
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


def test_a_connection_that_owes_answers_is_not_usable() -> None:
    connection = connected(NotedSocket(b"STORED\r\nSTORED\r\n"))
    answers = connection.ask_all([CALLS.put(b"work", b"a"), CALLS.put(b"work", b"b")])
    assert connection.is_usable
    next(answers)
    assert not connection.is_usable
    assert list(answers) == [True]
    assert connection.is_usable


def test_a_large_request_is_sent_in_pieces_of_which_each_has_the_whole_time() -> None:
    socket = NotedSocket(b"STORED\r\n")
    call = CALLS.put(b"work", b"x" * 100_000)
    connected(socket).ask(call)
    assert socket.sent == call.request
    assert socket.notes.count(("send", 10)) == 7
    assert socket.notes[-1] == ("receive", 10)


def test_nothing_that_was_received_is_given_after_a_close() -> None:
    connection = connected(NotedSocket(b"VALUE work 0 1\r\na\r\nEND\r\n" * 2))
    items = connection.stream(CALLS.monitor(b"work", 5))
    assert next(items) == b"a"
    connection.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        next(items)


def test_another_process_neither_uses_a_connection_nor_takes_bytes_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    socket = NotedSocket(b"VERSION 1\r\n")
    connection = connected(socket)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(CannotConnect):
        connection.ask(CALLS.version())
    assert not connection.is_at_rest()
    assert socket.notes == [("close", None)]
