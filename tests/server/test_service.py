"""Plain TCP connections of every protocol belong to the hub. All others belong to Twisted."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve
from twisted.internet.endpoints import _SystemdParser
from twisted.internet.epollreactor import EPollReactor
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.python.systemd import ListenFDs

from kestrel.admin.routes import Routes
from kestrel.config.load import loads
from kestrel.config.model import AdminSettings, Config
from kestrel.net import hub
from kestrel.server.endpoints import is_plain_tcp
from kestrel.server.service import KestrelService
from tests.client.certificates import Authority
from tests.server.running import ANY_PORT, PATIENCE_S, REQUESTS


@pytest.mark.parametrize(
    ("endpoint", "is_plain"),
    [
        ("tcp:22133", True),
        ("tcp:port=22133:interface=127.0.0.1:backlog=9", True),
        ("TCP:22133", True),
        ("tcp6:22133", True),
        ("ssl:22133:privateKey=key.pem", False),
        ("unix:/run/kestrel.sock", False),
        ("systemd:domain=INET:index=0", True),
        ("systemdx:1", False),
        ("haproxy:tcp:22133", False),
        ("tcpx:1", False),
    ],
)
def test_endpoints_of_plain_tcp_are_recognised(endpoint: str, is_plain: bool) -> None:
    assert is_plain_tcp(endpoint) is is_plain


class Running:
    """A server in this process, on a reactor that only the test moves.

    `bound` is called when it has its ports, `looks` when it has loaded its queues.
    """

    def __init__(
        self,
        folder: Path,
        protocol: str,
        endpoint: str,
        storage: str = "memory:",
        bound: Callable[[], object] = lambda: None,
        admin: AdminSettings | None = None,
        looks: Callable[[], object] = lambda: None,
    ) -> None:
        self.reactor = EPollReactor()
        self._idle = set(self.reactor.getReaders())
        config = evolve(
            Config(),
            storage=storage,
            status_file=str(folder / "status"),
            memcache_listen_port=None,
            text_listen_port=None,
            thrift_listen_port=None,
            admin=admin or AdminSettings(http_port=None),
        )
        loaded: list[bool] = []

        def has_loaded() -> None:
            looks()
            loaded.append(True)

        self.service = KestrelService(self.reactor, config, endpoints={protocol: [endpoint]}, loaded=has_loaded)
        self.service.privilegedStartService()
        bound()
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
        """The number of descriptors that the reactor watches."""
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


@pytest.mark.parametrize("given", ["", "maxConnections = 20000\n"])
def test_file_limit_is_reported_only_if_more_connections_are_configured(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 1024))
    with capturedLogs() as events:
        KestrelService(EPollReactor(), loads('storage = "memory:"\n' + given))
    warned = ["maxConnections is 704 instead of 20000: this process cannot open more files (ulimit -n, LimitNOFILE)"]
    assert [formatEvent(event) for event in events] == (warned if given else [])


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


def descriptors_of_a_client(
    running: Running, family: socket.AddressFamily, address: tuple[str, int] | str
) -> int:
    """Connect a client that gets a reply, and return the number of descriptors that were added to the reactor."""
    watched = running.watched
    with socket.socket(family) as client:
        client.connect(address)
        client.setblocking(False)
        client.sendall(b"version\r\n")
        running.until(lambda: answers(client, b"VERSION "))
        return running.watched - watched


def test_start_is_logged_after_everything_between_loading_and_serving(tmp_path: Path) -> None:
    with capturedLogs() as events:

        def has_said() -> list[object]:
            return [event for event in events if " serves " in str(event.get("log_format"))]

        said_before: list[object] = []
        running = Running(tmp_path, "memcache", ANY_PORT, looks=lambda: said_before.extend(has_said()))
        running.until(has_said)
        running.stop()
    assert said_before == []


def test_clients_of_other_endpoints_are_watched_singly(run: Callable[[str, str], Running], tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    running = run("memcache", f"unix:{path}")
    assert descriptors_of_a_client(running, socket.AF_UNIX, path) == 1


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[socket.socket], None]:
    """Make the process believe that systemd has opened this socket."""

    def give(listening: socket.socket) -> None:
        handed_over = os.dup(listening.fileno())  # the port closes it
        monkeypatch.setattr(_SystemdParser, "_sddaemon", ListenFDs([handed_over], ["kestrel.socket"]))

    return give


@pytest.mark.parametrize(
    ("family", "domain", "host"), [(socket.AF_INET, "INET", "127.0.0.1"), (socket.AF_INET6, "INET6", "::1")]
)
def test_clients_of_tcp_ports_of_systemd_are_watched_as_one(
    run: Callable[[str, str], Running],
    given: Callable[[socket.socket], None],
    family: socket.AddressFamily,
    domain: str,
    host: str,
) -> None:
    with socket.socket(family) as listening:
        listening.bind((host, 0))
        listening.listen()
        given(listening)
        running = run("memcache", f"systemd:domain={domain}:index=0")
        assert descriptors_of_a_client(running, family, listening.getsockname()[:2]) == 0


def test_unix_socket_of_systemd_is_like_any_other(
    run: Callable[[str, str], Running], given: Callable[[socket.socket], None], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        given(listening)
        running = run("memcache", "systemd:domain=UNIX:name=kestrel.socket")
        assert descriptors_of_a_client(running, socket.AF_UNIX, listening.getsockname()) == 1


def test_root_only_opens_ports(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    storage = f"journal:{tmp_path}/queues"
    running = Running(tmp_path, "memcache", ANY_PORT, storage, bound=lambda: seen.append(os.listdir(tmp_path)))
    running.stop()
    assert seen == [[]]
    assert os.listdir(tmp_path) == ["queues"]


def test_without_epoll_plain_tcp_is_like_any_other_endpoint(
    run: Callable[[str, str], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "IS_AVAILABLE", False)
    running = run("memcache", ANY_PORT)
    assert descriptors_of_a_client(running, socket.AF_INET, address_of(running)) == 1


def test_default_admin_port_in_use_does_not_prevent_a_start(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, capturedLogs() as events:
        running = Running(tmp_path, "memcache", ANY_PORT, admin=AdminSettings(http_port=other.getsockname()[1]))
        running.stop()
    assert [event for event in events if "no admin pages" in event.get("log_format", "")]


def test_history_is_recorded_only_with_an_admin_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Routes] = []
    monkeypatch.setattr(Routes, "start", lambda routes: started.append(routes))
    Running(tmp_path, "memcache", ANY_PORT, admin=AdminSettings(http_port=None)).stop()
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        Running(tmp_path, "memcache", ANY_PORT, admin=AdminSettings(http_port=taken)).stop()
    assert not started
    Running(tmp_path, "memcache", ANY_PORT, admin=AdminSettings(http_port=0)).stop()
    assert len(started) == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not tell the backlog")
@pytest.mark.parametrize("prefix", ["tcp", "ssl", "reloadtls", "mtls"])
@pytest.mark.parametrize(("more", "backlog"), [("", Config().connection_backlog), (":backlog=7", 7)])
def test_every_endpoint_has_the_configured_backlog(tmp_path: Path, prefix: str, more: str, backlog: int) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("localhost")
    files = "" if prefix == "tcp" else f":certKey={certificate}:privateKey={key}"
    authorities = f":caCerts={authority.ca_file}" if prefix == "mtls" else ""
    endpoint = f"{prefix}:0:interface=127.0.0.1{files}{authorities}{more}"
    for protocol in REQUESTS:
        running = Running(tmp_path, protocol, endpoint)
        [port] = [each for each in running.reactor.getReaders() if hasattr(each, "getHost")]
        listening: socket.socket = port.socket
        told = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        assert struct.unpack("=28xI", told) == (backlog,)  # tcpi_sacked, which is the backlog of a listening socket
        running.stop()


def test_burst_of_tls_clients_waits_to_be_accepted(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("localhost")
    endpoint = f"reloadtls:0:interface=127.0.0.1:certKey={certificate}:privateKey={key}"
    running = Running(tmp_path, "memcache", endpoint)
    address = address_of(running)
    with ExitStack() as clients:
        for _ in range(300):  # while the server accepts none
            clients.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
    running.stop()
