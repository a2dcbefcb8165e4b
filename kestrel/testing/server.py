"""A whole server in memory, for tests: no port, no disk, no thread, no time but the test's.

    server = MemoryServer()
    client = server.connect()
    client.send(b"set work 0 0 5\\r\\nhello\\r\\n")
    assert client.take() == b"STORED\\r\\n"

It is the real thing from the Twisted protocol class down to the storage; only what is around it is made here: a
reactor's turns (`MemoryServer.tick`), a transport, and a storage whose slow parts end when a test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from kestrel.config.model import QueueSettings
from kestrel.errors import KestrelError, QueueFailed, StorageRefused
from kestrel.item import Item
from kestrel.journal.records import encode_item
from kestrel.net.connection import Connection, ConnectionFactory
from kestrel.protocols.codec import Codec
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.queues.manager import QueueManager
from kestrel.session.settings import SessionSettings
from kestrel.session.turns import Turns
from kestrel.storage.barrier import Barrier
from kestrel.storage.interfaces import IQueueStorage, IStorage
from kestrel.storage.memory import MemoryQueue, MemoryStorage

READ_BYTES: Final = 64 * 1024
"""What one read brings at most, and what a transport holds before it pauses its producer: Twisted's own number."""

WRITE_BYTES: Final = 128 * 1024
"""What one write takes at most: Twisted's own number."""

EPOCH_MS: Final = 1_700_000_000_000
"""What the wall clock of a new server shows."""

RESTLESS_TICKS: Final = 20_000
"""A server that has something to do in so many ticks will not come to rest."""


class MemoryTransport(StringTransport):
    """The server's end of a connection. It treats its protocol as Twisted's TCP transports do.

    Bytes move in pieces, one read and one write a tick, and none in a direction that one side has paused. A
    producer is paused while more than `READ_BYTES` wait to be written.
    """

    def __init__(self, client: MemoryClient, soon: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(lenient=True)  # type: ignore[no-untyped-call]
        self._client = client
        self._soon = soon
        self._protocol: Connection | None = None
        self._push_producer: IPushProducer | None = None
        self._is_producer_paused = False
        self._is_listening = True
        self._input_ended = False
        self._input_end_told = False
        self.unread = bytearray()
        """What the client sent and the server has not read."""
        self.unsent = bytearray()
        """What the server wrote and the client has not read."""

    def connect(self, protocol: Connection) -> None:
        """Begin."""
        self._protocol = protocol
        protocol.makeConnection(self)  # type: ignore[no-untyped-call]

    # What a reactor does.

    @property
    def has_work(self) -> bool:
        """Whether the next tick would move something."""
        return self._can_read() or self._can_write()

    def work(self) -> None:
        """One read and one write, as far as there is something to read or write."""
        if self._can_read():
            self._read()
        if self._can_write():
            self._write()

    def _can_read(self) -> bool:
        if not self.connected or self.disconnecting or not self._is_listening:
            return False
        return bool(self.unread) or (self._input_ended and not self._input_end_told)

    def _read(self) -> None:
        assert self._protocol is not None
        if self.unread:
            data = bytes(self.unread[:READ_BYTES])
            del self.unread[:READ_BYTES]
            self._protocol.dataReceived(data)
        else:
            self._input_end_told = True
            self._protocol.readConnectionLost()

    def _can_write(self) -> bool:
        return self.connected and self._client.reads and bool(self.unsent or self.disconnecting)

    def _write(self) -> None:
        self._client.received += self.unsent[:WRITE_BYTES]
        del self.unsent[:WRITE_BYTES]
        if self.unsent:
            return
        if self._push_producer is not None and self._is_producer_paused:
            self._is_producer_paused = False
            self._push_producer.resumeProducing()
        elif self.disconnecting:
            self.lost(ConnectionDone())

    # What the client's end does.

    def arrive(self, data: bytes) -> None:
        """Bytes from the client; read at once if nothing is before them."""
        is_next = not self.unread
        self.unread += data
        if is_next and self._can_read():
            self._read()

    def end_input(self) -> None:
        """The client's last byte has been sent."""
        self._input_ended = True
        if not self.unread and self._can_read():
            self._read()

    def lost(self, reason: Exception) -> None:
        """There is no connection any more."""
        if not self.connected:
            return
        assert self._protocol is not None
        self.connected = False
        producer, self._push_producer = self._push_producer, None
        if producer is not None:
            producer.stopProducing()
        self._protocol.connectionLost(Failure(reason))

    # ITransport, IConsumer, IPushProducer: what the protocol calls.

    def write(self, data: bytes) -> None:
        """Take bytes for the client."""
        if not isinstance(data, bytes):
            raise TypeError(f"only bytes can be written, not {type(data).__name__}")
        if not self.connected:
            return
        self.unsent += data
        if self._push_producer is not None and len(self.unsent) > READ_BYTES:
            self._is_producer_paused = True
            self._push_producer.pauseProducing()

    def loseConnection(self) -> None:
        """Hang up when everything written has been read."""
        self.disconnecting = True

    def abortConnection(self) -> None:
        """Hang up at once."""
        self.disconnecting = True
        self.unsent.clear()
        self._soon(lambda: self.lost(ConnectionAborted()))

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """Who is told when too much waits to be written. Only push producers are known here."""
        if self._push_producer is not None or not streaming:
            raise RuntimeError("one producer, and a streaming one")
        self._push_producer = producer

    def unregisterProducer(self) -> None:
        """Tell nobody any more."""
        self._push_producer = None

    def pauseProducing(self) -> None:
        """Read nothing for a while."""
        self._is_listening = False

    def resumeProducing(self) -> None:
        """Read again. The end of the input is found again too, as a reactor finds it."""
        self._is_listening = True
        self._input_end_told = False


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


@implementer(IQueueStorage)
class SteppedQueue(MemoryQueue):
    """A queue of a `SteppedStorage`. `page_out` takes its items out of memory until `end_fill` or `clear`."""

    def __init__(self, name: bytes) -> None:
        super().__init__(name)
        self._is_paged_out = False
        self._filling: Deferred[None] | None = None
        self.safe: list[bytes] = []
        """The records that survive when a commit fails."""

    def page_out(self) -> None:
        """The head is not in memory from now on, and `fill` waits."""
        self._is_paged_out = True

    @property
    def is_filling(self) -> bool:
        """Whether somebody waits for the head."""
        return self._filling is not None

    def end_fill(self, error: Exception | None = None) -> None:
        """The head is in memory again; or it cannot be read."""
        assert self._filling is not None, "nobody asked for the head"
        filling, self._filling = self._filling, None
        if error is None:
            self._is_paged_out = False
            filling.callback(None)
        else:
            filling.errback(error)

    def fill(self) -> Deferred[None] | None:
        """None, or while paged out a Deferred that fires in `end_fill`."""
        self.check()
        if not self._is_paged_out:
            return None
        assert self._filling is None, "fill was called while one was outstanding"
        self._filling = Deferred()
        return self._filling

    def peek(self) -> Item | None:
        """The head, unless it is paged out."""
        self.check()
        return None if self._is_paged_out else super().peek()

    def take(self, opened: bool) -> Item | None:
        """The head, unless it is paged out."""
        self.check()
        return None if self._is_paged_out else super().take(opened)

    def clear(self) -> None:
        """Nothing is left to be paged out."""
        super().clear()
        self._is_paged_out = False

    @property
    def mem_items(self) -> int:
        """None while paged out."""
        return 0 if self._is_paged_out else super().mem_items

    def records(self) -> list[bytes]:
        """What a restart would find: the open reads are back at the head."""
        decoded = [*(self._open[xid] for xid in self.open_xids()), *self._front]
        return [*(encode_item(item.data, item.add_ms, item.expiry_ms) for item in decoded), *self._records]


@implementer(IStorage)
class SteppedStorage(MemoryStorage):
    """A storage in memory that is slow, full or broken when a test says so.

    With `holds_commits` each commit waits for `end_commits`. `refusal` refuses puts. After a failed commit
    a queue opens at its last safe state, unless `reopen_refusal` says why it cannot be opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holds_commits = False
        self.reopen_refusal: str | None = None
        self._committing: list[tuple[SteppedQueue, list[bytes], Deferred[None]]] = []

    def queue(self, name: bytes, settings: QueueSettings) -> SteppedQueue:
        """The queue of that name; a fresh one after a failure."""
        queue = self._queues.get(name)
        if isinstance(queue, SteppedQueue) and queue.failure is None:
            return queue
        if queue is not None and self.reopen_refusal is not None:
            raise QueueFailed(self.reopen_refusal)
        fresh = self._queues[name] = SteppedQueue(name)
        if isinstance(queue, SteppedQueue):
            for record in queue.safe:
                fresh.append(record)
            fresh.safe = queue.safe
        return fresh

    def put(self, queues: Sequence[MemoryQueue], data: bytes, add_ms: int, expiry_ms: int) -> None:
        """Append, unless `refusal` says why not."""
        if self.refusal is not None:
            raise StorageRefused(self.refusal)
        super().put(queues, data, add_ms, expiry_ms)

    def commit(self, queues: Sequence[IQueueStorage]) -> Sequence[tuple[Sequence[IQueueStorage], Deferred[Any]]]:
        """Safe at once, or with `holds_commits` when `end_commits` says so."""
        pending = []
        for queue in queues:
            assert isinstance(queue, SteppedQueue)
            assert all(queue is not other for other, _, _ in self._committing), "two commits of one queue"
            if queue.failure is not None:
                continue
            if self.holds_commits:
                done: Deferred[None] = Deferred()
                self._committing.append((queue, queue.records(), done))
                pending.append(([queue], done))
            else:
                queue.safe = queue.records()
        return pending

    @property
    def committing(self) -> list[bytes]:
        """The names of the queues whose commit waits, oldest first."""
        return [queue.name for queue, _, _ in self._committing]

    def end_commits(self, *names: bytes, error: Exception | None = None) -> None:
        """The commits of these queues, or of all, went well; or failed, and the queues are dead."""
        ending = [each for each in self._committing if not names or each[0].name in names]
        assert ending, "no such commit waits"
        self._committing = [each for each in self._committing if each not in ending]
        for queue, records, done in ending:
            if error is None:
                queue.safe = records
                done.callback(None)
            else:
                queue.failure = str(error)
                done.errback(error)
