"""A blocking connection, as far as its socket shows it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import CannotConnect, ConnectionFailed
from kestrel.client.memcache import MemcacheCalls

CALLS = MemcacheCalls()


class NotedSocket:
    """A socket that gives these bytes, and notes what is done to it."""

    def __init__(self, reply: bytes = b"", send_error: OSError | None = None) -> None:
        self.reply = reply
        self.send_error = send_error
        self.timeout_s: float | None = None
        self.notes: list[tuple[str, float | None]] = []

    def settimeout(self, seconds: float) -> None:
        self.timeout_s = seconds

    def sendall(self, data: bytes) -> None:
        self.notes.append(("send", self.timeout_s))
        if self.send_error is not None:
            raise self.send_error

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
