"""A whole server in memory, for tests: no ports, disk, threads or real time.

    server = MemoryServer()
    client = server.connect()
    client.send(b"set work 0 0 5\\r\\nhello\\r\\n")
    assert client.take() == b"STORED\\r\\n"

All code from the Twisted protocol class to the storage is the real code. Only its surroundings are replaced: the
reactor's ticks (`MemoryServer.tick`) and the transports. `kestrel.testing.storage` has a storage whose commits and
fills end when a test calls a method.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.task import Clock

from kestrel.config.model import Config
from kestrel.config.resolved import ResolvedConfig
from kestrel.disk.files import AtomicFile, Disk
from kestrel.errors import KestrelError
from kestrel.net.queue_server import CODEC_FACTORIES
from kestrel.protocols.codec import Codec
from kestrel.queues.manager import QueueManager
from kestrel.queues.status import ServerStatus, StatusFile
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.server.assembly import Environment, assemble_server
from kestrel.storage.barrier import Barrier
from kestrel.storage.interfaces import IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.total_memory import MemoryLimit
from kestrel.testing.transport import MemoryTransport

EPOCH_MS: Final = 1_700_000_000_000

RESTLESS_TICKS: Final = 20_000
"""The number of ticks after which a server that still has work is considered stuck."""


class MemoryClient:
    """The client's end of a connection.

    `received` holds the bytes read since the last `take`. While `reads` is False the client reads nothing.
    """

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.received = bytearray()
        self.reads = True
        self.transport = MemoryTransport(self, server.soon)

    def send(self, data: bytes) -> None:
        """Send bytes. If the server is reading, it reads the first piece at once."""
        self.transport.arrive(data)

    def take(self) -> bytes:
        """Let the server settle, and return the bytes received since the last call."""
        self._server.settle()
        data = bytes(self.received)
        self.received.clear()
        return data

    def ask(self, data: bytes) -> bytes:
        """Send bytes and return the reply. The clock does not move."""
        self.send(data)
        return self.take()

    def half_close(self) -> None:
        """Close the sending direction; the client still reads."""
        self.transport.end_input()

    def disconnect(self) -> None:
        """Lose the connection. The server never reads the remaining bytes."""
        self.transport.lost(ConnectionLost())

    @property
    def is_closed(self) -> bool:
        """True if either end has closed the connection."""
        return not self.transport.connected


class MemoryControl:
    """A `kestrel.session.session_context.ServerControl` that records the clients' requests to the server as a whole."""

    version = "1.2.3"

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.reloads = 0
        self.reload_error: KestrelError | None = None
        """The error of the next reloads; None if they succeed."""
        self.new_config: Config | None = None
        """The configuration that the next reload reads; None for no change."""
        self.is_shut_down = False

    @property
    def status(self) -> ServerStatus:
        return self._server.core.status

    def uptime_s(self) -> int:
        """Return the time of the timers' clock in seconds."""
        return int(self._server.clock.seconds())

    def reload(self) -> Deferred[None]:
        """Apply `new_config`, or fail with `reload_error`."""
        if self.reload_error is not None:
            return fail(self.reload_error)
        self.reloads += 1
        if self.new_config is not None:
            return self._server.core.use(ResolvedConfig(self.new_config))
        return succeed(None)

    def iter_config(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        return self._server.core.iter_config(names)

    def shutdown(self) -> None:
        """Record the request. The server keeps running."""
        self.is_shut_down = True


class MemoryStatusFile:
    """A `kestrel.queues.status.StatusFile` in memory. If `error` is set, both methods raise it."""

    def __init__(self) -> None:
        self.path = b"status"
        self.data: bytes | None = None
        self.error: OSError | None = None

    def read(self, most_bytes: int) -> bytes:
        """Return the last written data, up to `most_bytes`."""
        if self.error is not None:
            raise self.error
        if self.data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.data[:most_bytes]

    def write(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.data = data


class MemoryServer:
    """A server with simulated reactor ticks. Its storage is in memory unless `storage` or `folder` is given.

    Timers use `clock`, which only `advance` moves. Stored times use `now_ms`, which follows that clock and can be
    stepped with `step_wall_clock`. `session_settings` is a configuration whose limits apply to connections. It may be
    replaced at any time. The server accepts commands once the storage has loaded its queues.

    With a `folder`, `restart` and `crash` start the server again over its contents. Thread work then runs at once, and
    the status is stored there. `make_storage` is called like `JournalStorage`. `make_codec` replaces the codec of
    memcache clients.
    """

    def __init__(
        self,
        storage: IStorage | None = None,
        *,
        config: Config | None = None,
        folder: Path | None = None,
        make_storage: Callable[..., IStorage] = JournalStorage,
        disk: Disk | None = None,
        status_file: StatusFile | None = None,
        clock: Clock | None = None,
        make_codec: Callable[[], Codec] | None = None,
        session_settings: Config | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.ticks = 0
        self.folder = folder
        self.crashes = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._worked_s = 0.0
        self._wall_clock_step_ms = 0
        self._transports: list[MemoryTransport] = []
        self._make_storage = make_storage
        self._disk = disk or Disk()
        self._given_status_file = status_file
        self._protocols: dict[str, Callable[[Config], Codec]] = {}
        if make_codec is not None:
            self._protocols["memcache"] = lambda config: make_codec()
        self.control = MemoryControl(self)
        self._start(config or Config(), storage)
        if session_settings is not None:
            self.session_settings = session_settings

    def _start(self, config: Config, storage: IStorage | None) -> None:
        environment = Environment(
            clock=self.clock,
            seconds=self._seconds,
            now_ms=self.now_ms,
            schedule=self.soon,
            in_thread=maybeDeferred,
            make_storage=lambda limit: storage or self._storage_of_folder(limit),
            status_file=self._status_file(),
            codecs={**CODEC_FACTORIES, **self._protocols},
        )
        parts = assemble_server(ResolvedConfig(config), environment, self.control)
        self.core, self.factories = parts.core, parts.factories
        self.started: Deferred[None] = self.core.start().addCallback(lambda _: self.core.serve())
        self.settle()

    def _storage_of_folder(self, memory_limit: MemoryLimit) -> IStorage:
        if self.folder is None:
            return MemoryStorage()
        return self._make_storage(
            os.fsencode(self.folder),
            self.clock,
            maybeDeferred,
            reserve_bytes=1,
            now_ms=self.now_ms,
            disk=self._disk,
            memory=memory_limit,
        )

    def _status_file(self) -> StatusFile:
        if self._given_status_file is not None:
            return self._given_status_file
        if self.folder is None:
            return MemoryStatusFile()
        return AtomicFile(self._disk, os.fsencode(self.folder / ".kestrel" / "status"))

    @property
    def manager(self) -> QueueManager:
        return self.core.manager

    @property
    def barrier(self) -> Barrier:
        return self.core.barrier

    @property
    def scheduler(self) -> TickScheduler:
        return self.core.scheduler

    @property
    def session_settings(self) -> Config:
        return self.core.session_settings

    @session_settings.setter
    def session_settings(self, settings: Config) -> None:
        self.core.apply_session_settings(settings)

    def reload(self, config: Config) -> None:
        """Apply another configuration, as after a reload of the file."""
        self.core.use(ResolvedConfig(config))
        self.settle()

    def restart(self, config: Config | None = None) -> None:
        """Stop the server in order, which disconnects all clients, and start it again over the same folder."""
        assert self.folder is not None, "restart() and crash() need a server with a folder"
        stopped: list[object] = []
        self.stop().addCallback(stopped.append)
        self.settle()
        assert stopped, "the server did not stop"
        self._start(config or self.core.config, None)

    def crash(self, config: Config | None = None) -> None:
        """Stop the server abruptly, and start it again over a copy of its folder. Clients get no replies."""
        assert self.folder is not None, "restart() and crash() need a server with a folder"
        self.crashes += 1
        copy = self.folder.with_name(f"{self.folder.name}-{self.crashes}")
        shutil.copytree(self.folder, copy)
        # From here on, changes to the old folder do not matter.
        self.core.abort()
        self.settle()
        self.stop()
        self.settle()
        self.folder = copy
        self._start(config or self.core.config, None)

    def connect(self, protocol: str = "memcache") -> MemoryClient:
        """Return a new client, connected to the server with that protocol."""
        client = MemoryClient(self)
        self._transports.append(client.transport)
        client.transport.connect(self.factories[protocol].buildProtocol(None))
        return client

    def stop(self) -> Deferred[None]:
        """Stop in order: end waiting gets, send the pending replies, then close the storage."""
        return self.core.hang_up().addCallback(lambda _: self.core.close())

    # The reactor.

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function in the next tick, as a reactor's `callFromThread` does."""
        self._soon.append(call)

    def tick(self) -> None:
        """Run one tick: the calls queued by `soon`, the timers that are due, then each connection once."""
        self.ticks += 1
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        self.clock.advance(0)
        self._transports = [transport for transport in self._transports if transport.connected]
        for transport in list(self._transports):
            transport.work()

    @property
    def is_at_rest(self) -> bool:
        """True if nothing will happen before a client acts or the clock moves."""
        now = self.clock.seconds()
        return not (
            self._soon
            or any(call.getTime() <= now for call in self.clock.getDelayedCalls())
            or any(transport.has_work for transport in self._transports)
        )

    def settle(self) -> None:
        """Run ticks until the server is at rest. The clock does not move."""
        for _ in range(RESTLESS_TICKS):
            if self.is_at_rest:
                return
            self.tick()
        raise AssertionError(f"the server was not at rest after {RESTLESS_TICKS} ticks")

    def advance(self, seconds: float) -> None:
        """Move the timers' clock and the wall clock forward, and let the server settle."""
        self.clock.advance(seconds)
        self.settle()

    def step_wall_clock(self, ms: int) -> None:
        """Step the wall clock, forward or back, without moving the timers' clock."""
        self._wall_clock_step_ms += ms

    def now_ms(self) -> int:
        """Return the time of the wall clock in milliseconds since the epoch."""
        return EPOCH_MS + round(self.clock.seconds() * 1000) + self._wall_clock_step_ms

    def spend(self, seconds: float) -> None:
        """Simulate work of that many seconds: the clock that measures ticks moves, timers do not."""
        self._worked_s += seconds

    def _seconds(self) -> float:
        return self.clock.seconds() + self._worked_s
