"""A listening port that takes in a burst of connections bit by bit."""

from __future__ import annotations

from typing import Any, Final

from twisted.internet import tcp
from twisted.internet.interfaces import IListeningPort, IProtocolFactory

MAX_ACCEPTS_PER_TICK: Final = 16
"""So many connections are accepted in one turn: who is connected already does not wait for a whole burst."""


MAX_HANDSHAKES_PER_TICK: Final = 2
"""With TLS: what the first bytes of one cost is a hundred times what a request does."""


class PacedPort(tcp.Port):
    """Twisted's port: binding, accepting, a table of descriptors that is full, stopping."""

    max_accepts = MAX_ACCEPTS_PER_TICK

    def doRead(self) -> None:
        """Accept some of those who wait. Twisted would take in ever more in one go while there are ever more."""
        self.numberAccepts = min(self.numberAccepts, self.max_accepts)
        super().doRead()  # type: ignore[no-untyped-call]


class TlsPort(PacedPort):
    """One with TLS."""

    max_accepts = MAX_HANDSHAKES_PER_TICK


class TlsListener:
    """The one method of a reactor that endpoints of TCP use: give them this in its place, below TLS."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def listenTCP(self, port: int, factory: IProtocolFactory, backlog: int = 50, interface: str = "") -> IListeningPort:
        """Listen as the reactor would."""
        listening = TlsPort(port, factory, backlog, interface, self._reactor)
        listening.startListening()
        return listening
