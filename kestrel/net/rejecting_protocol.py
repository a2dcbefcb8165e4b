"""The protocol of a connection beyond the limit."""

from __future__ import annotations

from twisted.internet.interfaces import ISSLTransport
from twisted.internet.protocol import Protocol


class RejectingProtocol(Protocol):
    """A protocol that sends the reason and closes the connection. With TLS, it skips the reason."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def connectionMade(self) -> None:
        """Reject the client."""
        assert self.transport is not None
        if ISSLTransport.providedBy(self.transport):
            self.transport.abortConnection()
        else:
            self.transport.write(self._reply)
            self.transport.loseConnection()
