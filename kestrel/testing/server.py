"""A whole server in memory, for tests: no port, no disk, no thread, no time but the test's.

    server = MemoryServer()
    client = server.connect()
    client.send(b"set work 0 0 5\\r\\nhello\\r\\n")
    assert client.take() == b"STORED\\r\\n"

It is the real thing from the Twisted protocol class down to the storage; only what is around it is made here: a
reactor's turns (`MemoryServer.tick`) and its transports. `kestrel.testing.storage` has a storage whose slow parts end
when a test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock

from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError
from kestrel.net.connection import ConnectionFactory
from kestrel.protocols.codec import Codec
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.queues.manager import QueueManager
from kestrel.session.settings import SessionSettings
from kestrel.session.turns import Turns
from kestrel.storage.barrier import Barrier
from kestrel.storage.interfaces import IStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.testing.transport import MemoryTransport

EPOCH_MS: Final = 1_700_000_000_000
"""What the wall clock of a new server shows."""

RESTLESS_TICKS: Final = 20_000
"""A server that has something to do in so many ticks will not come to rest."""


class MemoryClient:
    """The client's end of a connection.

    `received` is what it has read since the last `take`. While `reads` is False it reads nothing.
    """

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.received = bytearray()
        self.reads = True
        self.transport = MemoryTransport(self, server.soon)

    def send(self, data: bytes) -> None:
        """Send bytes. The server reads them at once if it listens, in pieces as a reactor reads."""
        self.transport.arrive(data)

    def take(self) -> bytes:
        """What was received since the last call, after the server has come to rest."""
        self._server.settle()
        data = bytes(self.received)
        self.received.clear()
        return data

    def ask(self, data: bytes) -> bytes:
        """Send bytes and take what comes back without time going by."""
        self.send(data)
        return self.take()

    def half_close(self) -> None:
        """Send nothing any more, and go on reading."""
        self.transport.end_input()

    def disconnect(self) -> None:
        """Be gone. What the server has not read yet it never will."""
        self.transport.lost(ConnectionLost())

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, from either side."""
        return not self.transport.connected


class MemoryControl:
    """What clients ask of the server as a whole is noted here (`kestrel.session.settings.ServerControl`)."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self.version = "1.2.3"
        self.reloads = 0
        self.reload_error: KestrelError | None = None
        """What a reload raises."""
        self.is_shut_down = False

    def uptime_s(self) -> int:
        """Seconds on the timers' clock."""
        return int(self._seconds())

    def reload(self) -> None:
        """Count, or raise what was arranged."""
        if self.reload_error is not None:
            raise self.reload_error
        self.reloads += 1

    def shutdown(self) -> None:
        """Note it; the server goes on."""
        self.is_shut_down = True


class MemoryServer:
    """A server over a storage (in memory unless one is given), and a reactor's turns.

    Timers run by `clock`, which only `advance` moves. Stored times are `now_ms`, which goes along with it and
    can be stepped apart. `session_settings` may be replaced at any time. Clients are served once the storage
    has loaded its queues.
    """

    def __init__(
        self,
        storage: IStorage | None = None,
        *,
        clock: Clock | None = None,
        make_codec: Callable[[], Codec] = MemcacheCodec,
        session_settings: SessionSettings | None = None,
        queue_settings: Callable[[bytes], QueueSettings] = lambda name: QueueSettings(),
    ) -> None:
        self.clock = clock or Clock()
        self.ticks = 0
        self.session_settings = session_settings or SessionSettings()
        self._soon: deque[Callable[[], None]] = deque()
        self._worked_s = 0.0
        self._wall_clock_step_ms = 0
        self._transports: list[MemoryTransport] = []
        self.control = MemoryControl(self.clock.seconds)
        self.barrier = Barrier(self.soon)
        self.turns = Turns(self.barrier, self.soon, self._seconds)
        self.manager = QueueManager(
            storage or MemoryStorage(), MemoryStorage(), queue_settings, self.barrier, self.now_ms
        )
        self.factory = ConnectionFactory(
            self.manager, make_codec, self.control, self.turns, self.clock, lambda: self.session_settings
        )
        self.started: Deferred[None] = self.manager.start().addCallback(lambda _: self.turns.open())
        self.settle()

    def connect(self) -> MemoryClient:
        """A client of this server."""
        client = MemoryClient(self)
        self._transports.append(client.transport)
        client.transport.connect(self.factory.buildProtocol(None))
        return client

    def stop(self) -> Deferred[None]:
        """Stop in order: no more waiting, the replies that are owed, then the storage."""
        self.manager.wake_all()
        return self.factory.hang_up().addCallback(lambda _: self.manager.close())

    # A reactor's turns.

    def soon(self, call: Callable[[], None]) -> None:
        """Call in the next tick, as a reactor's callFromThread does."""
        self._soon.append(call)

    def tick(self) -> None:
        """One turn: what was to be called soon, the timers that are due, then each connection once."""
        self.ticks += 1
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        self.clock.advance(0)
        self._transports = [transport for transport in self._transports if transport.connected]
        for transport in list(self._transports):
            transport.work()

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing will happen before a client does something or time goes by."""
        now = self.clock.seconds()
        return not (
            self._soon
            or any(call.getTime() <= now for call in self.clock.getDelayedCalls())
            or any(transport.has_work for transport in self._transports)
        )

    def settle(self) -> None:
        """Let ticks pass until the server is at rest; no time goes by."""
        for _ in range(RESTLESS_TICKS):
            if self.is_at_rest:
                return
            self.tick()
        raise AssertionError(f"the server still had something to do after {RESTLESS_TICKS} ticks")

    # Time.

    def advance(self, seconds: float) -> None:
        """Let time go by on the timers' clock and on the wall's, and the server come to rest."""
        self.clock.advance(seconds)
        self.settle()

    def step_wall_clock(self, ms: int) -> None:
        """Set the wall clock forward, or back; no timer notices."""
        self._wall_clock_step_ms += ms

    def now_ms(self) -> int:
        """What the wall clock shows, in milliseconds since the epoch."""
        return EPOCH_MS + round(self.clock.seconds() * 1000) + self._wall_clock_step_ms

    def spend(self, seconds: float) -> None:
        """Be busy so long: what turns are measured by goes on, timers do not."""
        self._worked_s += seconds

    def _seconds(self) -> float:
        return self.clock.seconds() + self._worked_s
