"""The one Twisted protocol class: it moves bytes between a transport and a session, whatever they speak."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IHandshakeListener,
    ILoggingContext,
    IProtocol,
    IPushProducer,
    ISSLTransport,
    ISystemHandle,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from kestrel.commands import Command
from kestrel.errors import Unavailable
from kestrel.net.certificate_subject import certificate_subject
from kestrel.net.rejecting_protocol import RejectingProtocol
from kestrel.protocols.codec import Codec
from kestrel.session.access import Access
from kestrel.session.client_transport import ClientTransport
from kestrel.session.handlers import HANDLERS
from kestrel.session.session import Session
from kestrel.session.session_context import SessionContext
from kestrel.session.settings import ServerControl

log = Logger(__name__)


class Connection(ClientTransport):
    """One client's connection, over TCP, TLS, a Unix socket or anything else that an endpoint makes (`IProtocol`).

    It is its transport's push producer, so that a client that does not read its replies is not listened to.
    """

    def __init__(self, connections: ConnectionFactory) -> None:
        self._connections = connections
        self.factory = connections
        # Any: what a stream transport can do is spread over several of Twisted's interfaces.
        self.transport: Any = None
        self.session: Session = connections.session(self)

    def makeConnection(self, transport: Any) -> None:
        """Here is the transport."""
        self.transport = transport
        self.connectionMade()

    def logPrefix(self) -> str:
        """What the log says in front of what is logged meanwhile."""
        return "Connection"

    def connectionMade(self) -> None:
        """A client came."""
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self._connections.opened(self)
        if ISSLTransport.providedBy(self.transport):
            self.session.handshake_began()

    def handshakeCompleted(self) -> None:
        """TLS has begun, and what the client said of itself is verified."""
        self.session.handshake_ended()
        certificate = self.transport.getPeerCertificate()
        if certificate is not None:
            self.session.access.subject = certificate_subject(certificate)

    def dataReceived(self, data: bytes) -> None:
        """Bytes from the client."""
        self.session.received(data)

    def readConnectionLost(self) -> None:
        """The client half-closed: it is done asking and may still read."""
        self.session.input_ended()

    def writeConnectionLost(self) -> None:
        """Nothing to do: the transport loses the connection next."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The client is gone."""
        if isinstance(reason.value, SSL.Error):
            self._connections.log_tls_failure(self, reason.value)
        try:
            self.session.lost()
        finally:  # or it would take a place of maxConnections for ever
            self._connections.closed(self)

    def peer_has_closed(self) -> bool:
        """Whether a plain connection's end is there to be read. (Of TLS it is not known.)"""
        handle = _socket_of(self.transport)
        if handle is None:
            return False
        try:
            return not handle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError as error:
            return not isinstance(error, BlockingIOError)

    def handle(self) -> socket.socket | None:
        """The system's end of it, also of one below TLS, if it has one."""
        return _socket_of(self.transport) or _socket_of(getattr(self.transport, "transport", None))

    def write(self, data: bytes) -> None:
        """Hand replies to the transport."""
        self.transport.write(data)

    def close_when_sent(self) -> None:
        """Hang up when everything written has left. (A TLS transport would wait for its producer for ever.)"""
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abort(self) -> None:
        """Drop the connection with whatever it is owed."""
        self.transport.abortConnection()

    @property
    def peer(self) -> str:
        """Who that is, for the log."""
        return "gone" if self.transport is None else str(self.transport.getPeer())

    def set_reading(self, is_wanted: bool) -> None:
        """Read from the client, or not for a while."""
        if is_wanted:
            self.transport.resumeProducing()
        else:
            self.transport.pauseProducing()

    def pauseProducing(self) -> None:
        """The transport holds as much as it wants to."""
        self.session.pause()

    def resumeProducing(self) -> None:
        """The transport takes more."""
        self.session.resume()

    def stopProducing(self) -> None:
        """The transport is closing; connectionLost follows."""
        self.session.pause()


# A class with a decorator is not compiled to a native class, so there is no @implementer above it.
classImplements(Connection, IProtocol, IHalfCloseableProtocol, IHandshakeListener, IPushProducer, ILoggingContext)


class ConnectionFactory(Factory):
    """Makes the connections of one listening port, and ends them all when the server stops."""

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
        self._connections: set[Connection] = set()
        self._emptied: Deferred[None] | None = None

    def buildProtocol(self, addr: IAddress | None) -> Connection | RejectingProtocol:  # type: ignore[override]  # Protocol there
        """A connection for a client that came; when there are too many, one on which it is told so.

        Those who are trusted are none too many: they may be coming to do something about it.
        """
        limit = self._context.settings.max_connections
        if self._is_trusted or self._counters.curr_connections < limit:
            return Connection(self)
        self._counters.rejected_connections += 1
        error = Unavailable(f"too many connections; limit={limit}")
        self._context.refusal_log.log(str(addr), None, str(error))
        reply, _ = self._make_codec().error(Command(), error)
        return RejectingProtocol(reply)

    def session(self, connection: Connection) -> Session:
        """The session behind a connection."""
        codec = self._make_codec()
        access = Access(self._context, self._control.status, codec, is_trusted=self._is_trusted)
        return Session(self._context, codec, self._control, HANDLERS, access, connection)

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        self._connections.add(connection)
        counters, settings = self._counters, self._context.settings
        counters.total_connections += 1
        counters.curr_connections += 1
        access = connection.session.access
        access.refuses_writes = _is_over(counters.curr_connections, settings.refuse_writes_over)
        access.refuses_reads = _is_over(counters.curr_connections, settings.refuse_reads_over)
        connection.session.began()
        if settings.traces_sessions:
            log.info("Session opened: {peer}", peer=connection.peer)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        self._counters.curr_connections -= 1
        if self._context.settings.traces_sessions:
            log.info("Session closed: {peer}", peer=connection.peer)
        if not self._connections and self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def log_tls_failure(self, connection: Connection, error: SSL.Error) -> None:
        """A client and the port did not agree on TLS, or no longer do."""
        # What OpenSSL has to say is a list of (library, function, reason).
        reasons = [why for said in error.args if isinstance(said, list) for *_, why in said] or ["failed"]
        self._context.refusal_log.log(connection.peer, connection.session.access.identity, f"TLS: {', '.join(reasons)}")

    @property
    def count(self) -> int:
        """How many are there."""
        return len(self._connections)

    def all(self) -> list[Connection]:
        """Those that are there."""
        return list(self._connections)

    def settings_changed(self) -> None:
        """The limits of connections may be others now."""
        for connection in self._connections:
            connection.session.settings_changed()

    def hang_up(self) -> Deferred[None]:
        """Hang up on everyone after the replies they are owed; fires when all are gone."""
        if not self._connections:
            return succeed(None)
        self._emptied = Deferred()
        for connection in list(self._connections):
            connection.session.stop()
        return self._emptied

    def abort(self) -> None:
        """Drop those who have not gone."""
        for connection in list(self._connections):
            connection.abort()


def _socket_of(transport: Any) -> socket.socket | None:
    handle = transport.getHandle() if ISystemHandle.providedBy(transport) else None
    return handle if isinstance(handle, socket.socket) else None


def _is_over(connections: int, limit: int | None) -> bool:
    return limit is not None and connections > limit
