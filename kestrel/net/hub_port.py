"""Where plain TCP comes in: Twisted's own listening port, whose connections are the hub's."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from kestrel.net.hub import Hub
from kestrel.net.hub_transport import HubTransport
from kestrel.net.paced_port import PacedPort


class HubPort(PacedPort):
    """Only the transports differ."""

    hub: Hub

    def transport(  # type: ignore[override]
        self, sock: socket.socket, protocol: IProtocol, peer: tuple[Any, ...], port: Any, number: int, reactor: Any
    ) -> HubTransport:
        """Called for each connection as the class in `tcp.Port.transport` would be: it is there to be replaced."""
        return self.hub.connect(sock, protocol, peer)


class HubListener:
    """What `tcp:`, `tcp6:` and `systemd:` endpoints use of a reactor: give them this in its place."""

    def __init__(self, reactor: Any, hub: Hub) -> None:
        self._reactor = reactor
        self._hub = hub

    def listenTCP(self, port: int, factory: IProtocolFactory, backlog: int = 50, interface: str = "") -> IListeningPort:
        """Listen as the reactor would."""
        return self._listen(HubPort(port, factory, backlog, interface, self._reactor))

    def adoptStreamPort(self, fileDescriptor: int, addressFamily: int, factory: IProtocolFactory) -> IListeningPort:
        """Go on listening on a socket that somebody else has opened, systemd for example."""
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
