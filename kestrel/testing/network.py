"""Twisted clients connected to servers in memory, for tests of client programs without ports or real time.

    network = MemoryNetwork()
    server = MemoryServer(clock=network.clock)
    client = Client(network.clock, network.endpoint(server))
    assert network.run(client.put("work", b"hello"))
    assert network.run(client.get("work")) == b"hello"

If work needs time to pass, start it with `begin` and move the clock with `advance`.
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
    """The receiving end of the bytes that a client's transport writes."""

    reads = True

    def __init__(self) -> None:
        self.received = bytearray()


class MemoryConnection:
    """A connection between a client's Twisted protocol and a server in memory."""

    def __init__(self, server: MemoryServer, spoken: str, protocol: IProtocol) -> None:
        self.server_end = server.connect(spoken)
        self._wire = _Wire()
        self.transport = MemoryTransport(self._wire, server.soon)
        self.transport.connect(protocol)

    @property
    def is_over(self) -> bool:
        """True if both ends know that the connection has ended."""
        return self.server_end.is_closed and not self.transport.connected

    def move(self) -> bool:
        """Move the available bytes in both directions. Return True if anything happened."""
        to_client, to_server = self.server_end.received, self._wire.received
        listens = self.transport.is_listening
        # Bytes that the client does not read must stay in the server's buffers.
        self.server_end.reads = listens
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
                # The client learns of the end after it has read the bytes before it.
                return False
            self.transport.lost(ConnectionDone())
        else:
            self.server_end.disconnect()
        return True


@implementer(IStreamClientEndpoint)
class MemoryEndpoint:
    """A client endpoint that connects to a server in memory."""

    def __init__(self, server: MemoryServer, spoken: str) -> None:
        self._server = server
        self._spoken = spoken
        self.attempts = 0
        self.is_away = False
        self.is_silent = False
        """True if connection attempts get no answer."""
        self.connections: list[MemoryConnection] = []
        """The connections that have not ended."""

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Return a Deferred that has fired with a connected protocol, unless `is_away` or `is_silent` is set."""
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
        """Run one tick of the server, and move bytes on all connections. Return True if anything happened."""
        is_busy = not self._server.is_at_rest
        if is_busy:
            # One tick only: bytes that a client does not read must stay in the server's buffers.
            self._server.tick()
        moved = [connection.move() for connection in self.connections]
        self.connections = [connection for connection in self.connections if not connection.is_over]
        return is_busy or any(moved)

    def disconnect(self) -> None:
        """End all connections, as a stopping server does."""
        for connection in self.connections:
            connection.server_end.disconnect()


class MemoryNetwork:
    """Servers in memory and their clients, which share one clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._endpoints: list[MemoryEndpoint] = []

    def endpoint(self, server: MemoryServer, protocol: str = "memcache") -> MemoryEndpoint:
        """Return an endpoint that connects to a server with that protocol. The server must use `self.clock`."""
        endpoint = MemoryEndpoint(server, protocol)
        self._endpoints.append(endpoint)
        return endpoint

    def settle(self) -> None:
        """Move bytes until nothing happens. The clock does not move."""
        for _ in range(RESTLESS_TICKS):
            if not any(endpoint.move() for endpoint in self._endpoints):
                return
        raise AssertionError(f"there were still bytes to move after {RESTLESS_TICKS} rounds")

    def advance(self, seconds: float) -> None:
        """Move the clock forward, and settle before and after."""
        self.settle()
        self.clock.advance(seconds)
        self.settle()

    def begin(self, work: Coroutine[Deferred[Any], Any, T]) -> Deferred[T]:
        """Start the coroutine, and settle. Return its Deferred."""
        deferred = Deferred.fromCoroutine(work)
        self.settle()
        return deferred

    def run(self, work: Coroutine[Deferred[Any], Any, T]) -> T:
        """Return the coroutine's result, or raise its error. Raise AssertionError if it needs time to pass."""
        return self.result(self.begin(work))

    def result(self, deferred: Deferred[T]) -> T:
        """Return the result of a Deferred that has fired, or raise its error."""
        results: list[T | Failure] = []
        deferred.addBoth(results.append)
        assert results, "the Deferred has not fired: move the clock with advance()"
        [result] = results
        if isinstance(result, Failure):
            result.raiseException()
        return result
