"""Reconnection of a ZooKeeper client."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from kestrel.address import Address
from kestrel.cluster import zookeeper as under_test
from kestrel.cluster.zookeeper import connection_problem, zookeeper_client
from tests.server.running import eventually

SESSION_S = 0.9

LONG_SESSION_S = 6.0
"""An attempt to connect has a third of this. A busy machine may take several times longer."""
LET_IN = struct.pack("!iiiqi16s?", 37, 0, 10_000, 1, 16, b"", False)
"""ZooKeeper's reply to an accepted session."""
AUTH_FAILED = struct.pack("!iiqi", 16, -4, 1, -115)


class Impostor:
    """A server with the replies of a test. Each connection has its own thread."""

    def __init__(self, answer: Callable[[socket.socket], object]) -> None:
        self.times: list[float] = []
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._listening.getsockname())
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.times.append(time.monotonic())
                Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(60)
            connection.recv(1024)
            self._answer(connection)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@contextmanager
def impostor(
    answer: Callable[[socket.socket], object], stopped: threading.Event | None = None, **options: Any
) -> Iterator[tuple[Impostor, Any]]:
    """Yield an impostor and a started client of it. `stopped` replaces the event that the client waits on."""
    server = Impostor(answer)
    client = zookeeper_client([server.address], SESSION_S, **options)
    if stopped is not None:
        client._stopped = stopped
    client.start_async()
    try:
        yield server, client
    finally:
        client.stop()
        client.close()
        server.close()


def sends(*answers: bytes) -> Callable[[socket.socket], object]:
    """Return an answer: send these bytes, and wait until the client closes the connection."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"".join(answers))
        while connection.recv(1024):
            pass

    return answer


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "the server is not a ZooKeeper"),
        ([struct.pack("!i", -1)], "the server is not a ZooKeeper"),
        ([LET_IN, struct.pack("!i", (1 << 31) - 1)], "the server is not a ZooKeeper"),
        ([LET_IN, struct.pack("!i5s", 5, b"hello")], "the server is not a ZooKeeper"),
        ([LET_IN, struct.pack("!iiqi", 16, 5, 5, 0)], "the server is not a ZooKeeper"),
    ],
)
def test_no_reply_ends_the_attempts(sent: list[bytes], problem: str) -> None:
    with impostor(sends(*sent)) as (server, client):
        eventually(lambda: len(server.times) > 2, "it tries again")
        eventually(lambda: connection_problem(client) == problem, "it says why")


def test_client_with_refused_credentials_tries_again() -> None:
    with impostor(sends(LET_IN, AUTH_FAILED), credentials="user:secret") as (server, client):
        eventually(lambda: len(server.times) > 2, "it tries again")
        eventually(lambda: connection_problem(client) == "the credentials are refused", "it says why")


class Pauses(threading.Event):
    """The event that a kazoo client waits on between two attempts. It records the times."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as the base class does."""
        assert timeout is not None
        self.seconds.append(timeout)
        return super().wait(timeout)


def test_pauses_grow_while_a_server_accepts_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: 0.0))  # no attempt takes long
    pauses = Pauses()
    with impostor(lambda connection: connection.sendall(LET_IN), pauses):
        eventually(lambda: len(pauses.seconds) > 4, "it tries again")
        assert pauses.seconds[:4] == [0.1, 0.2, SESSION_S / 4, SESSION_S / 4]


def test_attempt_without_a_reply_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "RESPONSE_TIMEOUT_S", 0.05)
    with impostor(sends(LET_IN)) as (_, client):
        eventually(lambda: client.connected, "it is connected")
        with pytest.raises(KazooTimeoutError, match="no answer for"):
            client.get_children("/")


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 70])
def test_unknown_host_name_is_the_reason(name: str) -> None:
    client = zookeeper_client([Address(name, 1)], SESSION_S)
    client.start_async()
    try:
        eventually(lambda: connection_problem(client) == "its host name is unknown", "it says why")
    finally:
        client.stop()
        client.close()


def test_session_without_replies_is_tried_again_within_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        client = zookeeper_client([Address(*silent.getsockname())], LONG_SESSION_S)
        client.start_async()
        try:
            connections, times = [], []
            for _ in range(3):
                connections.append(silent.accept()[0])
                times.append(time.monotonic())
            for each in connections:
                each.close()
            waits = [later - earlier for earlier, later in pairwise(times)]
            assert min(waits) < LONG_SESSION_S  # kazoo's own attempts take all of it, and a pause
        finally:
            client.stop()
            client.close()


def test_reason_for_a_missing_connection_is_known() -> None:
    client = zookeeper_client([Address("127.0.0.1", 1)], SESSION_S)
    assert connection_problem(client) == "no answer"
