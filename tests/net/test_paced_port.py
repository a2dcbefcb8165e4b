"""Ports that accept a burst of connections in small numbers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol

from kestrel.net.ports import MAX_HANDSHAKES_PER_TICK, TlsListener, TlsPort
from kestrel.net.tls_endpoint import TlsEndpointParser
from tests.client.certificates import Authority

BURST = 3 * MAX_HANDSHAKES_PER_TICK


class Idle:
    """A reactor that watches nothing; the test calls `doRead`."""

    def addReader(self, reader: object) -> None:
        pass

    removeReader = addWriter = removeWriter = addReader


@pytest.fixture
def port() -> Iterator[TlsPort]:
    made = TlsListener(Idle()).listenTCP(0, Factory.forProtocol(Protocol), 2 * BURST, "127.0.0.1")
    assert isinstance(made, TlsPort)
    with closing(made.socket):
        yield made


def test_each_burst_is_accepted_in_small_numbers(port: TlsPort) -> None:
    for _ in range(3):
        with ExitStack() as clients:
            for _ in range(BURST):
                clients.enter_context(socket.create_connection(("127.0.0.1", port.getHost().port)))
            accepted = []
            while sum(accepted) < BURST:
                before = port.sessionno
                port.doRead()
                accepted.append(port.sessionno - before)
        assert max(accepted) == MAX_HANDSHAKES_PER_TICK


def test_tls_endpoints_listen_on_tls_ports(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("localhost")
    endpoint = TlsEndpointParser("reloadtls", requires_client_certificate=False).parseStreamServer(
        Idle(), "0", certKey=certificate, privateKey=key, interface="127.0.0.1"
    )
    listening: list[Any] = []
    endpoint.listen(Factory.forProtocol(Protocol)).addCallback(listening.append)
    (port,) = listening
    with closing(port.socket):
        assert isinstance(port, TlsPort)
