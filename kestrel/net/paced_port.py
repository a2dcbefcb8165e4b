"""Listening ports that accept a burst of connections in small groups."""

from __future__ import annotations

from typing import Any, Final

from twisted.internet import tcp
from twisted.internet.interfaces import IListeningPort, IProtocolFactory

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
        """Listen on a paced port."""
        listening = TlsPort(port, factory, backlog, interface, self._reactor)
        listening.startListening()
        return listening
