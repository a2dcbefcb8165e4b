"""The one Twisted protocol class: it moves bytes between a transport and a session, whatever they speak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    ILoggingContext,
    IProtocol,
    IPushProducer,
    IReactorTime,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements

from kestrel.protocols.codec import Codec
from kestrel.queues.manager import QueueManager
from kestrel.queues.turns import Turns
from kestrel.session.access import Access
from kestrel.session.handlers import HANDLERS
from kestrel.session.leases import LeasedReads
from kestrel.session.session import Session
from kestrel.session.settings import ServerControl, SessionSettings

log = Logger(__name__)


class Connection:
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
        self.session.lost()
        self._connections.closed(self)

    def write(self, data: bytes) -> None:
        """Hand replies to the transport."""
        self.transport.write(data)

    def lose(self) -> None:
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

    def listen(self, wanted: bool) -> None:
        """Read from the client, or not for a while."""
        if wanted:
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
classImplements(Connection, IProtocol, IHalfCloseableProtocol, IPushProducer, ILoggingContext)


class ConnectionFactory(Factory):
    """Makes the connections of one listening port, and ends them all when the server stops."""

    noisy = False

    def __init__(
        self,
        manager: QueueManager,
        make_codec: Callable[[], Codec],
        control: ServerControl,
        leases: LeasedReads,
        turns: Turns,
        clock: IReactorTime,
        settings: Callable[[], SessionSettings],
    ) -> None:
        self._manager = manager
        self._make_codec = make_codec
        self._control = control
        self._leases = leases
        self._turns = turns
        self._clock = clock
        self._settings = settings
        self._connections: set[Connection] = set()
        self._emptied: Deferred[None] | None = None

    def buildProtocol(self, addr: IAddress | None) -> Connection:  # type: ignore[override]  # typed as Protocol there
        """A connection for a client that came."""
        return Connection(self)

    def session(self, connection: Connection) -> Session:
        """The session behind a connection."""
        return Session(
            self._manager,
            self._make_codec(),
            self._control,
            HANDLERS,
            self._leases,
            self._turns,
            self._clock,
            Access(self._manager, self._control.status),
            self._settings,
            write=connection.write,
            lose=connection.lose,
            abort=connection.abort,
            listen=connection.listen,
        )

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        self._connections.add(connection)
        counters, settings = self._manager.counters, self._settings()
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
        self._manager.counters.curr_connections -= 1
        if self._settings().traces_sessions:
            log.info("Session closed: {peer}", peer=connection.peer)
        if not self._connections and self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

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


def _is_over(connections: int, limit: int | None) -> bool:
    return limit is not None and connections > limit
