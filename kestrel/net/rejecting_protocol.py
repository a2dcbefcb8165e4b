"""A connection that is one too many."""

from __future__ import annotations

from twisted.internet.interfaces import ISSLTransport
from twisted.internet.protocol import Protocol


class RejectingProtocol(Protocol):
    """Says why in one reply, reads nothing, and hangs up. Where that would take a TLS handshake, it just hangs up."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def connectionMade(self) -> None:
        """A client came."""
        assert self.transport is not None
        if ISSLTransport.providedBy(self.transport):
            self.transport.abortConnection()
        else:
            self.transport.write(self._reply)
            self.transport.loseConnection()
