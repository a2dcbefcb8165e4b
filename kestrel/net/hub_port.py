"""The listening TCP port of the hub, based on Twisted's."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from kestrel.net.hub import Hub
from kestrel.net.hub_transport import HubTransport
from kestrel.net.paced_port import PacedPort


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
        """Listen on a TCP port. The hub serves its connections."""
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
