"""Twisted clients of servers in memory, for tests of programs: no port, no time but the test's.

    network = MemoryNetwork()
    server = MemoryServer(clock=network.clock)
    client = Client(network.clock, network.endpoint(server))
    assert network.run(client.put("work", b"hello"))
    assert network.run(client.get("work")) == b"hello"

What does not end without time going by is begun with `begin`, and `advance` lets time go by.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.testing.server import RESTLESS_TICKS, MemoryServer
from kestrel.testing.transport import MemoryTransport

T = TypeVar("T")


class _Wire:
    """What has left the client's transport."""

    reads = True

    def __init__(self) -> None:
        self.received = bytearray()


class MemoryConnection:
    """A connection of a Twisted protocol, the client's, to a server in memory."""

    def __init__(self, server: MemoryServer, spoken: str, protocol: IProtocol) -> None:
        self.server_end = server.connect(spoken)
        self._wire = _Wire()
        self.transport = MemoryTransport(self._wire, server.soon)
        self.transport.connect(protocol)

    @property
    def is_over(self) -> bool:
        """Whether both ends know that it has ended."""
        return self.server_end.is_closed and not self.transport.connected

    def move(self) -> bool:
        """Move what there is to move, in both directions; whether there was anything."""
        to_client, to_server = self.server_end.received, self._wire.received
        listens = self.transport.is_listening
        self.server_end.reads = listens  # what the client does not read stays with the server
        moves = self.transport.has_work or bool(to_server or (to_client and listens))
        self.transport.work()
        if to_server:
            self.server_end.send(bytes(to_server))
            to_server.clear()
        if to_client and listens:
            data = bytes(to_client)
            to_client.clear()
            self.transport.arrive(data)
        return self._tell_the_end() or moves

    def _tell_the_end(self) -> bool:
        if self.transport.connected == (not self.server_end.is_closed):
            return False
        if self.transport.connected:
            if self.server_end.received or not self.transport.is_listening:
                return False  # it will find out when it has read what came before
            self.transport.lost(ConnectionDone())
        else:
            self.server_end.disconnect()
        return True


@implementer(IStreamClientEndpoint)
class MemoryEndpoint:
    """Connects to a server in memory."""

    def __init__(self, server: MemoryServer, spoken: str) -> None:
        self._server = server
        self._spoken = spoken
        self.attempts = 0
        """How often somebody wanted to connect."""
        self.is_away = False
        """Whether connections are refused."""
        self.is_silent = False
        """Whether connections are neither made nor refused."""
        self.connections: list[MemoryConnection] = []
        """All that were made and have not ended."""

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """A connection at once."""
        self.attempts += 1
        if self.is_away:
            return fail(ConnectionRefusedError())
        if self.is_silent:
            return Deferred()
        protocol = protocolFactory.buildProtocol(IPv4Address("TCP", "memory", 0))
        if protocol is None:
            return fail(ConnectionRefusedError())
        self.connections.append(MemoryConnection(self._server, self._spoken, protocol))
        return succeed(protocol)

    def move(self) -> bool:
        """One turn of the server, and what there is to move on all connections; whether there was anything."""
        is_busy = not self._server.is_at_rest
        if is_busy:
            self._server.tick()  # and no more: what a client does not read has to stay with the server
        moved = [connection.move() for connection in self.connections]
        self.connections = [connection for connection in self.connections if not connection.is_over]
        return is_busy or any(moved)

    def disconnect(self) -> None:
        """End all connections, as a server that is stopped."""
        for connection in self.connections:
            connection.server_end.disconnect()


class MemoryNetwork:
    """Servers in memory and their clients, with one clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._endpoints: list[MemoryEndpoint] = []

    def endpoint(self, server: MemoryServer, protocol: str = "memcache") -> MemoryEndpoint:
        """What connects to the server, which speaks that protocol and must go by this network's clock."""
        endpoint = MemoryEndpoint(server, protocol)
        self._endpoints.append(endpoint)
        return endpoint

    def settle(self) -> None:
        """Move bytes until all is at rest; no time goes by."""
        for _ in range(RESTLESS_TICKS):
            if not any(endpoint.move() for endpoint in self._endpoints):
                return
        raise AssertionError(f"there was still something to move after {RESTLESS_TICKS} rounds")

    def advance(self, seconds: float) -> None:
        """Let time go by, and all come to rest."""
        self.settle()
        self.clock.advance(seconds)
        self.settle()

    def begin(self, work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
        """Have the coroutine go as far as it goes without time going by."""
        deferred = Deferred.fromCoroutine(work)
        self.settle()
        return deferred

    def run(self, work: Coroutine[Deferred[Any], Any, T]) -> T:
        """What the coroutine returns or raises, without time going by."""
        return self.result(self.begin(work))

    def result(self, deferred: Deferred[T]) -> T:
        """What the Deferred has fired with; an error is raised."""
        results: list[T | Failure] = []
        deferred.addBoth(results.append)
        assert results, "it is not at its end"
        [result] = results
        if isinstance(result, Failure):
            result.raiseException()
        return result
