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
from kestrel.disk.files import Disk
from kestrel.disk.whole_file import WholeFile
from kestrel.errors import KestrelError
from kestrel.net.codec_factories import CODEC_FACTORIES
from kestrel.net.queue_server import QueueServer
from kestrel.protocols.codec import Codec
from kestrel.queues.manager import QueueManager
from kestrel.queues.status import ServerStatus, StatusFile
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.session.settings import SessionSettings
from kestrel.storage.barrier import Barrier
from kestrel.storage.interfaces import IStorage
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.storage.total_memory import MemoryLimit
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

    version = "1.2.3"

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.reloads = 0
        self.reload_error: KestrelError | None = None
        """What a reload fails with."""
        self.new_config: Config | None = None
        """What the next reload finds in the file; None: what was there before."""
        self.is_shut_down = False

    @property
    def status(self) -> ServerStatus:
        """The server's status."""
        return self._server.core.status

    def uptime_s(self) -> int:
        """Seconds on the timers' clock."""
        return int(self._server.clock.seconds())

    def reload(self) -> Deferred[None]:
        """Take `new_config`, or fail with what was arranged."""
        if self.reload_error is not None:
            return fail(self.reload_error)
        self.reloads += 1
        if self.new_config is not None:
            return self._server.core.use(ResolvedConfig(self.new_config))
        return succeed(None)

    def iter_config(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, list[tuple[str, str]]]]:
        """Yield the settings of queues and aliases."""
        return self._server.core.iter_config(names)

    def shutdown(self) -> None:
        """Note it; the server goes on."""
        self.is_shut_down = True


class MemoryStatusFile:
    """Remembers the status as long as it lives (`kestrel.queues.status.StatusFile`). Both methods raise `error`."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.error: OSError | None = None

    def read(self, most_bytes: int) -> bytes:
        """What was written last."""
        if self.error is not None:
            raise self.error
        if self.data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.data[:most_bytes]

    def write(self, data: bytes) -> None:
        """Remember that."""
        if self.error is not None:
            raise self.error
        self.data = data


class MemoryServer:
    """A server over a storage (in memory unless one is given, or a folder), and a reactor's turns.

    Timers run by `clock`, which only `advance` moves. Stored times are `now_ms`, which goes along with it and
    can be stepped apart. `session_settings` may be replaced at any time. Clients are served once the storage
    has loaded its queues. With a `folder` the server can be started anew over what is in it: `restart` and `crash`;
    what is done in threads then ends at once, and the status is remembered there. `make_storage` makes the storage over
    the folder, called as `JournalStorage` is. `make_codec` makes the codecs of memcache clients in place of the
    configuration.
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
        session_settings: SessionSettings | None = None,
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
        memory_limit = MemoryLimit(config.max_total_memory_bytes)
        if storage is None and self.folder is not None:
            storage = self._make_storage(
                os.fsencode(self.folder),
                self.clock,
                maybeDeferred,
                reserve_bytes=1,
                now_ms=self.now_ms,
                disk=self._disk,
                memory=memory_limit,
            )
        self.core = QueueServer(
            ResolvedConfig(config),
            storage or MemoryStorage(),
            MemoryStorage(memory_limit),
            schedule=self.soon,
            clock=self.clock,
            seconds=self._seconds,
            now_ms=self.now_ms,
            in_thread=maybeDeferred,
            status_file=self._status_file(),
            memory_limit=memory_limit,
        )
        protocols = {**CODEC_FACTORIES, **self._protocols}
        self.factories = {name: self.core.connections(name, codec, self.control) for name, codec in protocols.items()}
        self.started: Deferred[None] = self.core.start().addCallback(lambda _: self.core.serve())
        self.settle()

    def _status_file(self) -> StatusFile:
        if self._given_status_file is not None:
            return self._given_status_file
        if self.folder is None:
            return MemoryStatusFile()
        return WholeFile(self._disk, os.fsencode(self.folder / ".kestrel" / "status"))

    @property
    def manager(self) -> QueueManager:
        """The queues."""
        return self.core.manager

    @property
    def barrier(self) -> Barrier:
        """The commit barrier."""
        return self.core.barrier

    @property
    def scheduler(self) -> TickScheduler:
        """Who may work in a tick."""
        return self.core.scheduler

    @property
    def session_settings(self) -> SessionSettings:
        """The limits of each connection."""
        return self.core.session_settings

    @session_settings.setter
    def session_settings(self, settings: SessionSettings) -> None:
        self.core.apply_session_settings(settings)

    def reload(self, config: Config) -> None:
        """Go by another configuration, as after a reload of the file."""
        self.core.use(ResolvedConfig(config))
        self.settle()

    def restart(self, config: Config | None = None) -> None:
        """Stop in order, which disconnects everyone, and start anew over the folder."""
        assert self.folder is not None, "there is nothing to start from"
        stopped: list[object] = []
        self.stop().addCallback(stopped.append)
        self.settle()
        assert stopped, "the server did not stop"
        self._start_anew(config)

    def crash(self, config: Config | None = None) -> None:
        """Be gone, and start anew over what is in the folder now, which is copied. Nobody is told anything."""
        assert self.folder is not None, "there is nothing to start from"
        self.crashes += 1
        copy = self.folder.with_name(f"{self.folder.name}-{self.crashes}")
        shutil.copytree(self.folder, copy)
        self.core.abort()  # what becomes of the old folder is nobody's concern
        self.settle()
        self.stop()
        self.settle()
        self.folder = copy
        self._start_anew(config)

    def _start_anew(self, config: Config | None) -> None:
        self._start(config or self.core.config, None)

    def connect(self, protocol: str = "memcache") -> MemoryClient:
        """A client of this server, which speaks that protocol."""
        client = MemoryClient(self)
        self._transports.append(client.transport)
        client.transport.connect(self.factories[protocol].buildProtocol(None))
        return client

    def stop(self) -> Deferred[None]:
        """Stop in order: no more waiting, the replies that are owed, then the storage."""
        return self.core.hang_up().addCallback(lambda _: self.core.close())

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
