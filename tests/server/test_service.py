"""Which connections are the hub's: those over plain TCP, of every protocol. What else there is has Twisted's own."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from twisted.internet.epollreactor import EPollReactor
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from kestrel.config.model import Config
from kestrel.net import hub
from kestrel.server.endpoints import is_plain_tcp
from kestrel.server.service import KestrelService
from tests.server.running import ANY_PORT, PATIENCE_S

REQUESTS = {
    "memcache": (b"version\r\n", b"VERSION "),
    "text": (b"put work:\nhello\n\n", b"+1\n"),
    "thrift": (b"\0\0\0\x18\x80\x01\0\x01\0\0\0\x0bget_version\0\0\0\0\0", b"\0\0\0"),
}


@pytest.mark.parametrize(
    ("endpoint", "is_plain"),
    [
        ("tcp:22133", True),
        ("tcp:port=22133:interface=127.0.0.1:backlog=9", True),
        ("TCP:22133", True),
        ("tcp6:22133", True),
        ("ssl:22133:privateKey=key.pem", False),
        ("unix:/run/kestrel.sock", False),
        ("systemd:domain=INET:index=0", False),
        ("haproxy:tcp:22133", False),
        ("tcpx:1", False),
    ],
)
def test_what_plain_tcp_is(endpoint: str, is_plain: bool) -> None:
    assert is_plain_tcp(endpoint) is is_plain


class Running:
    """A server in this process, on a reactor that only the test moves."""

    def __init__(self, folder: Path, protocol: str, endpoint: str) -> None:
        self.reactor = EPollReactor()
        self._idle = set(self.reactor.getReaders())
        config = evolve(
            Config(),
            storage="memory:",
            status_file=str(folder / "status"),
            memcache_listen_port=None,
            text_listen_port=None,
            thrift_listen_port=None,
        )
        loaded: list[bool] = []
        self.service = KestrelService(
            self.reactor, config, endpoints={protocol: [endpoint]}, loaded=lambda: loaded.append(True)
        )
        self.service.privilegedStartService()
        self.service.startService()
        self.until(lambda: loaded)
        self._is_stopped = False

    def until(self, happened: Callable[[], object]) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < ends_at, "it did not happen"
            self.reactor.iterate(0.001)

    @property
    def watched(self) -> int:
        """How many descriptors the reactor watches."""
        return len(self.reactor.getReaders())

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            ended: list[object] = []
            with capturedLogs() as events:
                self.service.stopService().addBoth(ended.append)
                self.until(lambda: ended)
            assert not isinstance(ended[0], Failure)
            assert not [event for event in events if "log_failure" in event]
            assert set(self.reactor.getReaders()) == self._idle, "nothing is watched any more"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str, str], Running]]:
    started: list[Running] = []

    def start(protocol: str, endpoint: str) -> Running:
        started.append(Running(tmp_path, protocol, endpoint))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def address_of(running: Running) -> tuple[str, int]:
    [port] = [each for each in running.reactor.getReaders() if hasattr(each, "getHost")]
    host = port.getHost()
    return host.host, host.port


def test_plain_tcp_clients_of_every_protocol_are_watched_as_one(run: Callable[[str, str], Running]) -> None:
    for protocol, (request, reply) in REQUESTS.items():
        running = run(protocol, ANY_PORT)
        watched = running.watched
        clients = [socket.create_connection(address_of(running)) for _ in range(5)]
        for client in clients:
            client.setblocking(False)
            client.sendall(request)
        for client in clients:
            running.until(partial(answers, client, reply))
        assert running.watched == watched
        running.stop()
        for client in clients:
            client.setblocking(True)
            assert client.recv(100) == b"", "it was hung up on"
            client.close()


def answers(client: socket.socket, reply: bytes) -> bool:
    try:
        return client.recv(1000).startswith(reply)
    except BlockingIOError:
        return False


def test_clients_of_other_endpoints_are_watched_one_by_one(run: Callable[[str, str], Running], tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    running = run("memcache", f"unix:{path}")
    watched = running.watched
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.setblocking(False)
        client.sendall(b"version\r\n")
        running.until(lambda: answers(client, b"VERSION "))
        assert running.watched == watched + 1


def test_without_epoll_plain_tcp_is_as_any_other_endpoint(
    run: Callable[[str, str], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "IS_AVAILABLE", False)
    running = run("memcache", ANY_PORT)
    watched = running.watched
    with socket.create_connection(address_of(running)) as client:
        client.setblocking(False)
        client.sendall(b"version\r\n")
        running.until(lambda: answers(client, b"VERSION "))
        assert running.watched == watched + 1
