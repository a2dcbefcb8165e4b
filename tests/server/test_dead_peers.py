"""keepAlive: connections inherit the option from the listening socket."""

from __future__ import annotations

import ctypes
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from twisted.internet.task import Clock

from kestrel.server.dead_peers import CONNECTIONS_PER_CHECK, DeadPeerChecker, enable_tcp_keepalive, peer_is_dead
from kestrel.server.process import max_connections_for_file_limit
from tests.client.certificates import Authority
from tests.server.running import REQUESTS, Client, Processes, eventually


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as sock:
        yield sock


def accepted(listening: socket.socket) -> dict[str, int]:
    """Return the settings of a new connection."""
    with closing(socket.create_connection(listening.getsockname())), closing(listening.accept()[0]) as sock:
        return {
            "on": sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            "silent_s": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            "between_s": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            "signs": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        }


@pytest.mark.parametrize(
    ("silent_ms", "silent_s", "between_s"),
    [(60_000, 60, 15), (10_000, 10, 2), (1000, 1, 1), (100, 1, 1), (86_400_000, 32_767, 8192)],
)
def test_first_probe_and_their_interval_follow_the_setting(
    listening: socket.socket, silent_ms: int, silent_s: int, between_s: int
) -> None:
    enable_tcp_keepalive(listening, silent_ms)
    assert accepted(listening) == {"on": 1, "silent_s": silent_s, "between_s": between_s, "signs": 4}


def test_probes_can_be_switched_off(listening: socket.socket) -> None:
    enable_tcp_keepalive(listening, 1000)
    enable_tcp_keepalive(listening, None)
    assert accepted(listening)["on"] == 0


def test_socket_that_is_not_tcp_is_unchanged() -> None:
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        enable_tcp_keepalive(sock, 1000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


@pytest.mark.parametrize("kept_alive", ["7s", "none"])
def test_server_probes_as_configured(processes: Processes, kept_alive: str) -> None:
    server = processes.serve(f'queuePath = "queues"\nkeepAlive = "{kept_alive}"\n')
    with server.connect() as client:
        client.ask(b"get work\r\n", b"END\r\n")
        assert is_kept_alive(server.port, client) == (kept_alive != "none")


def is_kept_alive(port: int, client: Client) -> bool:
    """Return True if the server's end of that connection has a keep-alive timer (2 in the table of the system)."""
    ours = client.socket.getsockname()[1]
    with open("/proc/net/tcp") as table:
        for line in table.readlines()[1:]:
            _, local, remote, _, _, timer, *_ = line.split()
            if int(local.partition(":")[2], 16) == port and int(remote.partition(":")[2], 16) == ours:
                return timer.startswith("02:")
    raise AssertionError("there is no such connection")


def test_connections_leave_files_for_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, room in ((1024, 1024 - 256 - 64), (524_288, 524_288 - 512 - 64), (64, 1)):
        monkeypatch.setattr("resource.getrlimit", lambda which, limit=limit: (limit, limit))
        assert max_connections_for_file_limit() == room


SILENT_MS = 1000


@pytest.fixture
def pair(listening: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client, and the server's end of its connection."""
    with closing(socket.create_connection(listening.getsockname())) as client, closing(listening.accept()[0]) as ours:
        yield client, ours


def deafen(client: socket.socket) -> None:
    """Let no packet reach the client, and none come from it, as if its cable were unplugged."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # a packet filter: drop
    so_attach_filter = 26
    client.setsockopt(socket.SOL_SOCKET, so_attach_filter, struct.pack("@HP", 1, ctypes.addressof(instruction)))


def test_peer_that_acknowledges_nothing_has_vanished(pair: tuple[socket.socket, socket.socket]) -> None:
    client, ours = pair
    deafen(client)
    ours.sendall(b"is anybody there")
    assert not peer_is_dead(ours, SILENT_MS)
    eventually(lambda: peer_is_dead(ours, SILENT_MS), "it is seen")


def test_silent_or_nonreading_peer_has_not_vanished(pair: tuple[socket.socket, socket.socket]) -> None:
    _, ours = pair
    assert not peer_is_dead(ours, 0)
    ours.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(65536))
    assert not peer_is_dead(ours, 0)
    with closing(socket.socket(socket.AF_UNIX)) as other:
        assert not peer_is_dead(other, 0)


@pytest.mark.parametrize("protocol", ["memcache", "thrift"])
def test_unacknowledged_items_of_a_vanished_client_return(processes: Processes, protocol: str) -> None:
    server = processes.serve('queuePath = "queues"\nkeepAlive = "1s"\n')
    with server.connect() as other, server.connect(protocol=protocol) as client:
        other.put(b"work", b"hello")
        deafen(client.socket)
        if protocol == "memcache":
            client.send(b"get work/open\r\n")
            eventually(lambda: other.stats()["queue_work_open_transactions"] == "1", "it is given out")
        else:
            client.send(REQUESTS["thrift"][0])
        eventually(lambda: other.stats()["curr_connections"] == "1", "it is noticed")
        assert other.get(b"work") == b"hello"


def test_unacknowledged_items_of_a_vanished_tls_client_return(
    processes: Processes, authority: Authority
) -> None:
    cert_file, key_file = authority.sign("mq.example")
    tls = f"reloadtls:0:interface=127.0.0.1:certKey={cert_file}:privateKey={key_file}"
    server = processes.serve('queuePath = "queues"\nkeepAlive = "1s"\n', "--text", tls)
    context = ssl.create_default_context(cafile=authority.ca_file)
    with server.connect() as other, server.connect(protocol="text") as plain:
        with context.wrap_socket(plain.socket, server_hostname="mq.example") as client:
            client.sendall(b"put work:\nhello\n\n")
            assert client.recv(3) == b"+1\n"
            deafen(client)
            client.sendall(b"get work\n")
            eventually(lambda: other.stats()["queue_work_open_transactions"] == "1", "it is given out")
            eventually(lambda: other.stats()["queue_work_open_transactions"] == "0", "it is back")
        assert other.get(b"work") == b"hello"


class Watched:
    """A connection without a real socket."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_dropped = False

    def handle(self) -> socket.socket:
        self.looks += 1
        return None if self.is_dropped else self  # type: ignore[return-value]

    def abort(self) -> None:
        self.is_dropped = True


def test_connections_are_checked_in_slices_and_vanished_ones_closed() -> None:
    clock = Clock()
    connections: list[Any] = [Watched() for _ in range(CONNECTIONS_PER_CHECK + 1)]
    vigil = DeadPeerChecker(
        clock, lambda: connections, lambda sock, silent_ms: sock is connections[-1] and silent_ms == 8000
    )
    vigil.keep(8000)
    looks: list[int] = []
    clock.callLater(2, lambda: looks.extend(each.looks for each in connections))  # between slices
    clock.advance(2)
    assert looks == [1] * CONNECTIONS_PER_CHECK + [0]
    assert [each.is_dropped for each in connections] == [False] * CONNECTIONS_PER_CHECK + [True]
    clock.advance(2)
    assert [each.looks for each in connections] == [2] * (CONNECTIONS_PER_CHECK + 1)
    vigil.keep(None)
    assert not clock.getDelayedCalls()
