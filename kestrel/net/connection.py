"""The Twisted protocol class of all client connections: it passes the events of a transport to a session."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IHandshakeListener,
    ILoggingContext,
    IProtocol,
    IPushProducer,
    ISSLTransport,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from kestrel.address import show_address
from kestrel.commands import Command
from kestrel.errors import Unavailable
from kestrel.protocols.codec import Codec
from kestrel.session.access import Access
from kestrel.session.administration import ADMINISTRATION
from kestrel.session.get_many import GET_MANY
from kestrel.session.gets import GETS
from kestrel.session.puts import PUTS
from kestrel.session.ranges import RANGES
from kestrel.session.session import Handlers, Session, socket_of
from kestrel.session.session_context import ServerControl, SessionContext

log = Logger(__name__)

_PLAIN_TEXT_REASONS: Final = frozenset({"wrong version number", "http request", "https proxy request"})
"""OpenSSL's reasons when the first bytes of a client are no TLS."""

HANDLERS: Final[Handlers] = {**PUTS, **GETS, **GET_MANY, **RANGES, **ADMINISTRATION}


class Connection:
    """The connection of one client, over TCP, TLS, a Unix socket or any other endpoint (`IProtocol`).

    It is the push producer of its transport, so that the server stops reading from a client that does not read replies.
    """

    def __init__(self, connections: ConnectionFactory) -> None:
        self._connections = connections
        self.factory = connections
        # Any: the methods of a stream transport are spread over several Twisted interfaces.
        self.transport: Any = None
        self.session: Session = connections.session()

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def logPrefix(self) -> str:
        return "Connection"

    def connectionMade(self) -> None:
        """Register a new connection with its factory, and with TLS start the deadline of the handshake."""
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self._connections.opened(self)
        if ISSLTransport.providedBy(self.transport):
            self.session.handshake_began()

    def handshakeCompleted(self) -> None:
        """Record the client's certificate when the TLS handshake is complete."""
        self.session.handshake_ended()
        certificate = self.transport.getPeerCertificate()
        if certificate is not None:
            self.session.access.subject = certificate_subject(certificate)

    def dataReceived(self, data: bytes) -> None:
        self.session.received(data)

    def readConnectionLost(self) -> None:
        self.session.input_ended()

    def writeConnectionLost(self) -> None:
        """Do nothing: the transport calls `connectionLost` next."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Process a disconnect: log a TLS failure, and end the session."""
        if isinstance(reason.value, SSL.Error):
            self._connections.log_tls_failure(self, reason.value)
        try:
            self.session.lost()
        finally:  # otherwise it would count against maxConnections forever
            self._connections.closed(self)

    def handle(self) -> socket.socket | None:
        """Return the connection's socket, or the one below TLS, if it has one."""
        return socket_of(self.transport) or socket_of(getattr(self.transport, "transport", None))

    def abort(self) -> None:
        self.transport.abortConnection()

    def pauseProducing(self) -> None:
        """Stop making replies: the transport's buffer is full."""
        self.session.pause()

    def resumeProducing(self) -> None:
        """Make replies again: the transport accepts more bytes."""
        self.session.resume()

    def stopProducing(self) -> None:
        """Stop making replies: the transport is closing, and calls `connectionLost` next."""
        self.session.pause()


# @implementer is not used, because mypyc does not compile a decorated class to a native class.
classImplements(Connection, IProtocol, IHalfCloseableProtocol, IHandshakeListener, IPushProducer, ILoggingContext)


class ConnectionFactory(Factory):
    """A factory for the connections of one protocol, which closes them when the server stops.

    Its clients are trusted or not. Trusted clients are administrators, and `maxConnections` does not apply to them.
    """

    noisy = False

    def __init__(
        self,
        context: SessionContext,
        make_codec: Callable[[], Codec],
        control: ServerControl,
        *,
        is_trusted: bool = False,
    ) -> None:
        self._context = context
        self._counters = context.manager.counters
        self._make_codec = make_codec
        self._control = control
        self._is_trusted = is_trusted
        self._connections: dict[Connection, None] = {}
        self._emptied: Deferred[None] | None = None

    def buildProtocol(self, addr: IAddress | None) -> Connection | RejectingProtocol:  # type: ignore[override]  # Protocol there
        """Return a connection for a new client, or one that rejects the client if there are too many.

        Trusted clients are always accepted, since they may be there to fix the problem.
        """
        limit = self._context.settings.max_connections
        if self._is_trusted or self._counters.curr_connections < limit:
            return Connection(self)
        self._counters.rejected_connections += 1
        error = Unavailable(f"too many connections; limit={limit}")
        self._context.refusal_log.log(show_address(addr), None, str(error))
        reply, _ = self._make_codec().error(Command(), error)
        return RejectingProtocol(reply)

    def session(self) -> Session:
        """Return a new session for a connection."""
        codec = self._make_codec()
        access = Access(self._context, self._control.status, codec, is_trusted=self._is_trusted)
        return Session(self._context, codec, self._control, HANDLERS, access)

    def opened(self, connection: Connection) -> None:
        """Register and count a new connection. If there are too many to write or read, its session refuses that."""
        self._connections[connection] = None
        counters, settings = self._counters, self._context.settings
        counters.total_connections += 1
        counters.curr_connections += 1
        session = connection.session
        access = session.access
        access.refuses_writes = _is_over(counters.curr_connections, settings.connection_limit_refuse_writes)
        access.refuses_reads = _is_over(counters.curr_connections, settings.connection_limit_refuse_reads)
        session.began(connection.transport)
        if settings.enable_session_trace:
            log.info("Session opened: {peer}", peer=connection.session.peer)

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._counters.curr_connections -= 1
        if self._context.settings.enable_session_trace:
            log.info("Session closed: {peer}", peer=connection.session.peer)
        if not self._connections and self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def log_tls_failure(self, connection: Connection, error: SSL.Error) -> None:
        # OpenSSL's errors are lists of (library, function, reason).
        reasons = [why for said in error.args if isinstance(said, list) for *_, why in said] or ["failed"]
        explanation = "" if _PLAIN_TEXT_REASONS.isdisjoint(reasons) else "the client does not speak TLS: "
        connection.session.log_refusal(f"TLS: {explanation}{', '.join(reasons)}")

    @property
    def count(self) -> int:
        return len(self._connections)

    def all(self) -> list[Connection]:
        """Return the open connections, the oldest first."""
        return list(self._connections)

    def settings_changed(self) -> None:
        """Apply the new settings of the session context to all connections."""
        for connection in self._connections:
            connection.session.settings_changed()

    def hang_up(self) -> Deferred[None]:
        """Close all connections after their pending replies. Fires when all are closed."""
        if not self._connections:
            return succeed(None)
        self._emptied = Deferred()
        for connection in list(self._connections):
            connection.session.stop()
        return self._emptied

    def abort(self) -> None:
        """Abort all connections that are still open."""
        for connection in list(self._connections):
            connection.abort()


def _is_over(connections: int, limit: int | None) -> bool:
    return limit is not None and connections > limit


class RejectingProtocol(Protocol):
    """A protocol that sends the reason and closes the connection. With TLS, it skips the reason."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def connectionMade(self) -> None:
        assert self.transport is not None
        if ISSLTransport.providedBy(self.transport):
            self.transport.abortConnection()
        else:
            self.transport.write(self._reply)
            self.transport.loseConnection()


def certificate_subject(certificate: X509) -> bytes:
    """Return the subject of a client's certificate in RFC 4514 format, ``CN=orders,O=Example``, in UTF-8."""
    return certificate.to_cryptography().subject.rfc4514_string().encode()
