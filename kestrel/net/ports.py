"""Listening ports: they accept a burst of connections in small groups, and pass plain TCP clients to the hub."""

from __future__ import annotations

import socket
from typing import Any, Final

from twisted.internet import tcp
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from kestrel.net.hub import Hub
from kestrel.net.hub_transport import HubTransport

MAX_ACCEPTS_PER_TICK: Final = 16
"""Limit of connections accepted in one tick, so that existing clients do not wait for a whole burst."""


MAX_HANDSHAKES_PER_TICK: Final = 2
"""Limit with TLS. The start of a handshake costs a hundred times as much as a request."""


class PacedPort(tcp.Port):
    """A listening port of Twisted that accepts a limited number of connections per tick."""

    max_accepts = MAX_ACCEPTS_PER_TICK

    def doRead(self) -> None:
        """Accept some of the waiting connections. Twisted would accept more at a time during a burst."""
        self.numberAccepts = min(self.numberAccepts, self.max_accepts)
        super().doRead()  # type: ignore[no-untyped-call]


class TlsPort(PacedPort):
    """A paced port for TLS."""

    max_accepts = MAX_HANDSHAKES_PER_TICK


class TlsListener:
    """The part of a reactor that TCP endpoints use. It opens paced ports for TLS."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def listenTCP(self, port: int, factory: IProtocolFactory, backlog: int = 50, interface: str = "") -> IListeningPort:
        listening = TlsPort(port, factory, backlog, interface, self._reactor)
        listening.startListening()
        return listening


class HubPort(PacedPort):
    """A listening port whose transports belong to the hub."""

    hub: Hub

    def transport(  # type: ignore[override]
        self, sock: socket.socket, protocol: IProtocol, peer: tuple[Any, ...], port: Any, number: int, reactor: Any
    ) -> HubTransport:
        """Return a transport for an accepted connection. It replaces the class attribute `tcp.Port.transport`."""
        return self.hub.connect(sock, protocol, peer)


class HubListener:
    """The part of a reactor that `tcp:`, `tcp6:` and `systemd:` endpoints use. It opens ports of the hub."""

    def __init__(self, reactor: Any, hub: Hub) -> None:
        self._reactor = reactor
        self._hub = hub

    def listenTCP(self, port: int, factory: IProtocolFactory, backlog: int = 50, interface: str = "") -> IListeningPort:
        return self._listen(HubPort(port, factory, backlog, interface, self._reactor))

    def adoptStreamPort(self, fileDescriptor: int, addressFamily: int, factory: IProtocolFactory) -> IListeningPort:
        """Listen on a socket that another process, such as systemd, has opened.

        The hub serves its connections if it is a TCP socket, and the reactor otherwise.
        """
        if addressFamily not in (socket.AF_INET, socket.AF_INET6):
            adopted: IListeningPort = self._reactor.adoptStreamPort(fileDescriptor, addressFamily, factory)
            return adopted
        port: HubPort = HubPort._fromListeningDescriptor(  # type: ignore[no-untyped-call]
            self._reactor, fileDescriptor, addressFamily, factory
        )
        return self._listen(port)

    def _listen(self, port: HubPort) -> IListeningPort:
        port.hub = self._hub
        port.startListening()
        return port
