"""Where plain TCP comes in: Twisted's own listening port, whose connections are the hub's."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet import tcp
from twisted.internet.interfaces import IListeningPort, IProtocol, IProtocolFactory

from kestrel.net.hub import Hub
from kestrel.net.hub_transport import HubTransport


class HubPort(tcp.Port):
    """Twisted's port: binding, accepting, a table of descriptors that is full, stopping. Only the transports differ."""

    hub: Hub

    def transport(  # type: ignore[override]
        self, sock: socket.socket, protocol: IProtocol, peer: tuple[Any, ...], port: Any, number: int, reactor: Any
    ) -> HubTransport:
        """Called for each connection as the class in `tcp.Port.transport` would be: it is there to be replaced."""
        return self.hub.connect(sock, protocol, peer)


class HubListener:
    """The one method of a reactor that `tcp:` and `tcp6:` endpoints use: give them this in place of the reactor."""

    def __init__(self, reactor: Any, hub: Hub) -> None:
        self._reactor = reactor
        self._hub = hub

    def listenTCP(self, port: int, factory: IProtocolFactory, backlog: int = 50, interface: str = "") -> IListeningPort:
        """Listen as the reactor would."""
        listening = HubPort(port, factory, backlog, interface, self._reactor)
        listening.hub = self._hub
        listening.startListening()
        return listening
