"""A port over real sockets whose connections are Twisted's or the hub's, so that both can run the same tests.

The test iterates the reactor, which is not the process's. The clients are non-blocking sockets.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from twisted.internet.endpoints import serverFromString
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.net.hub import Hub
from kestrel.net.ports import HubListener
from tests.child import PATIENCE_S

LITTLE: Final = 128 * 1024
"""Size of the receive buffer of a slow client."""


class Seen(Protocol):
    """A protocol that records the calls of its transport."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.calls: list[str] = []
        self.reason: Failure | None = None
        self.on_data: Callable[[bytes], object] = lambda data: None
        self.on_input_end: Callable[[], object] = lambda: None

    transport: Any

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        self.on_data(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        assert self.reason is None, "connectionLost is called once"
        self.calls.append("lost")
        self.reason = reason

    def lost_by(self, error: type[Exception]) -> bool:
        return self.reason is not None and self.reason.type is error


@implementer(IHalfCloseableProtocol)
class HalfCloseable(Seen):
    """A recording protocol that stays open after one direction has ended."""

    def readConnectionLost(self) -> None:
        self.calls.append("input ended")
        self.on_input_end()

    def writeConnectionLost(self) -> None:
        self.calls.append("output ended")


class Clients(ServerFactory):
    """A factory that records its protocols. `make` returns None to refuse a client."""

    noisy = False

    def __init__(self) -> None:
        self.make: Callable[[], Seen | None] = Seen
        self.made: list[Seen] = []

    def buildProtocol(self, addr: Any) -> Seen | None:
        protocol = self.make()
        if protocol is not None:
            self.made.append(protocol)
        return protocol


class Client:
    """A client with a non-blocking socket."""

    def __init__(self, address: tuple[str, int], receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(address)
        self.socket.setblocking(False)
        self.received = bytearray()
        self.has_ended = False
        self.was_reset = False

    def send(self, data: bytes) -> int:
        """Send as much as the system accepts, and return that number of bytes."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    def read(self, size: int = 1 << 20) -> None:
        """Read once, if bytes are available."""
        with suppress(BlockingIOError):
            try:
                data = self.socket.recv(size)
            except ConnectionResetError:
                self.was_reset = True
                return
            self.received += data
            self.has_ended = self.has_ended or not data

    def has(self, size: int) -> bool:
        """Read, and return True if at least this many bytes have been received."""
        self.read()
        return len(self.received) >= size

    def is_at_the_end(self) -> bool:
        """Read, and return True if the server has closed the connection."""
        self.read()
        return self.has_ended

    def is_reset(self) -> bool:
        """Read, and return True if the server has reset the connection."""
        self.read()
        return self.was_reset

    def half_close(self) -> None:
        """Close the sending direction."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def reset(self) -> None:
        """Reset the connection."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Net:
    """A port, the protocols of its connections, and their reactor.

    `hub` is None if the connections are Twisted's. `ticks` contains "begin" and "end" of each tick of the hub, and
    entries that tests add.
    """

    def __init__(self, reactor: EPollReactor, is_hub: bool) -> None:
        self.reactor = reactor
        self._readers_before = set(reactor.getReaders())
        self.ticks: list[str] = []
        self.seconds: Callable[[], float] = time.monotonic
        self.hub: Any = None
        self.factory = Clients()
        self._clients: list[Client] = []
        listener: Any = reactor
        if is_hub:
            self.hub = Hub(
                lambda: self.seconds(),
                lambda: self.ticks.append("begin"),
                lambda: self.ticks.append("end"),
                reactor.callFromThread,
            )
            reactor.addReader(self.hub)
            listener = HubListener(reactor, self.hub)
        self.port: Any = None
        serverFromString(listener, "tcp:0:interface=127.0.0.1").listen(self.factory).addCallback(self._listens)
        self.address = ("127.0.0.1", self.port.getHost().port)

    def _listens(self, port: Any) -> None:
        self.port = port

    def iterate(self) -> None:
        """Iterate the reactor once."""
        self.reactor.iterate(0)

    def until(self, happened: Callable[[], object]) -> None:
        """Iterate the reactor until the condition is true."""
        ends_at = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < ends_at, "timed out"
            self.reactor.iterate(0.001)

    def settle(self) -> None:
        """Iterate the reactor until it is idle. Local sockets deliver sent bytes at once."""
        for _ in range(10):
            self.iterate()

    def client(self, receive_buffer: int | None = None) -> Client:
        """Return a connected client that the server has not accepted yet."""
        client = Client(self.address, receive_buffer)
        self._clients.append(client)
        return client

    def connect(self, make: Callable[[], Seen] = Seen, receive_buffer: int | None = None) -> tuple[Client, Any]:
        """Return a client and its protocol in the server."""
        self.factory.make = make
        client = self.client(receive_buffer)
        before = len(self.factory.made)
        self.until(lambda: len(self.factory.made) > before)
        return client, self.factory.made[-1]

    @property
    def is_hub_idle(self) -> bool:
        """True if the reactor has no reason to call the hub."""
        return select.select([self.hub], [], [], 0) == ([], [], [])

    def end(self) -> None:
        """Close everything."""
        for client in self._clients:
            client.close()
        if self.port.connected:
            self.port.stopListening()
        for protocol in self.factory.made:
            if protocol.reason is None:
                protocol.transport.abortConnection()
        self.until(lambda: all(protocol.reason is not None for protocol in self.factory.made))
        self.settle()
        if self.hub is not None:
            self.reactor.removeReader(self.hub)
            self.hub.close()
        assert set(self.reactor.getReaders()) == self._readers_before, "the reactor still watches a descriptor"
