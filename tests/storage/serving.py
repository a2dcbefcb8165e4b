"""A whole server over a durable backend, in memory but for its files: clients, clock, threads and disk in hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from kestrel.config.model import Config, QueueSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.net.connection import ConnectionFactory
from kestrel.protocols.memcache import MemcacheCodec
from kestrel.queues.manager import QueueManager
from kestrel.queues.status import ServerStatus, StatusLevel
from kestrel.queues.tick_scheduler import TickScheduler
from kestrel.session.session_context import SessionContext
from kestrel.session.settings import SessionSettings
from kestrel.storage.barrier import Barrier
from kestrel.storage.journal.storage import JournalStorage
from kestrel.storage.memory import MemoryStorage
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryStatusFile
from kestrel.testing.threads import SteppedThreads
from tests.storage.backends import MakeStorage

START_MS = 1_700_000_000_000
RESERVE_BYTES = 1000

NEVER = QueueSettings()
SYNCED = QueueSettings(sync_journal_ms=0)
PERIOD_S = 0.5
PERIODIC = QueueSettings(sync_journal_ms=500)
IN_MEMORY = QueueSettings(keep_journal=False)

STORED = b"STORED\r\n"
END = b"END\r\n"


def put(queue: bytes, data: bytes) -> bytes:
    """The request that stores an item."""
    return b"set %b 0 0 %d\r\n%b\r\n" % (queue, len(data), data)


def value(queue: bytes, data: bytes) -> bytes:
    """The reply that brings an item."""
    return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue, len(data), data)


def is_server_error(reply: bytes) -> bool:
    """Whether that is one SERVER_ERROR with a reason, and nothing else."""
    return reply.startswith(b"SERVER_ERROR ") and len(reply) > 15 and reply.find(b"\r\n") == len(reply) - 2


def drain(server: Server, queue: bytes) -> list[bytes]:
    """Every item that a client gets from a queue."""
    client = server.client()
    items: list[bytes] = []
    while (reply := client.talk(b"get %b\r\n" % queue)) != END:
        head, _, rest = reply.partition(b"\r\n")
        assert head.startswith(b"VALUE %b 0 " % queue), reply
        items.append(rest[: int(head.split()[3])])
    return items


class Control:
    """What the server as a whole would answer."""

    version = "1.0"

    def __init__(self, clock: Clock) -> None:
        self.status = ServerStatus(MemoryStatusFile(), StatusLevel.UP, lambda: 0, clock, maybeDeferred)

    def uptime_s(self) -> int:
        return 1

    def reload(self) -> Deferred[None]:
        """Nothing to reload."""
        return succeed(None)

    def iter_config(self, names: Sequence[bytes]) -> list[tuple[bytes, list[tuple[str, str]]]]:
        """Nothing to show."""
        return []

    def shutdown(self) -> None:
        """Nothing to stop."""


class Client:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.transport = StringTransport()
        self.protocol = server.connections.buildProtocol(None)
        self.protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        """Send a request within the present tick."""
        self.protocol.dataReceived(data)

    def ask(self, data: bytes) -> bytes:
        """Send a request, end the tick, and return what has come back by then; no thread has run."""
        self.send(data)
        self._server.end_tick()
        return self.received()

    def talk(self, data: bytes) -> bytes:
        """Send a request, let everything happen that it leads to, and return what came back."""
        self.send(data)
        self._server.settle()
        return self.received()

    def received(self) -> bytes:
        """What has come since the last look."""
        data = self.transport.value()
        self.transport.clear()
        return data

    def half_close(self) -> None:
        """Send no more, go on reading."""
        self.protocol.readConnectionLost()

    def hang_up(self) -> None:
        """Be gone."""
        self.protocol.connectionLost()

    @property
    def was_hung_up_on(self) -> bool:
        """Whether the server closed the connection."""
        return self.transport.disconnecting


class Server:
    """A started server. `queues` gives settings by name, `others` those of all other queues.

    `is_stopped` once it has stopped and let its folder go.
    """

    def __init__(
        self,
        folder: Path,
        *,
        queues: dict[bytes, QueueSettings] | None = None,
        others: QueueSettings = NEVER,
        room: int | None = None,
        arrange: Callable[[FaultyDisk], object] = lambda disk: None,
        make_storage: MakeStorage = JournalStorage,
    ) -> None:
        self.folder = folder
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.disk = FaultyDisk()
        self.disk.room = room
        arrange(self.disk)
        self.wall_offset_ms = 0
        self._settings = dict(queues or {})
        self._others = others
        self._is_stopping = False
        self.is_stopped = False
        barrier = Barrier(self._soon)
        scheduler = TickScheduler(barrier, self._soon, self.clock.seconds)
        self.storage = make_storage(
            str(folder).encode(),
            self.clock,
            self.threads,
            reserve_bytes=RESERVE_BYTES,
            now_ms=self.now_ms,
            disk=self.disk,
        )
        self.manager = QueueManager(
            self.storage, MemoryStorage(), self._config(), scheduler, self.clock, self.now_ms
        )
        session_context = SessionContext(self.manager, scheduler, self.clock, SessionSettings(max_open_reads=10))
        self.connections = ConnectionFactory(session_context, MemcacheCodec, Control(self.clock))
        self.start_failures: list[Failure] = []
        self.manager.start().addErrback(self.start_failures.append)
        self.threads.run_all()
        scheduler.open()

    def _soon(self, call: Callable[[], None]) -> None:
        self.clock.callLater(0, call)

    def _config(self) -> ResolvedConfig:
        config = ResolvedConfig(Config())
        config.settings_for = self.settings_for
        return config

    def settings_for(self, name: bytes) -> QueueSettings:
        """The settings of the queue of that name."""
        return self._settings.get(name, self._others)

    def reload(self, settings: QueueSettings, *names: bytes) -> None:
        """Use these settings from now on, for the queues of these names or for all that have none of their own."""
        self._settings.update(dict.fromkeys(names, settings))
        if not names:
            self._others = settings
        self.manager.use(self._config())

    def now_ms(self) -> int:
        """The wall clock, which may be stepped."""
        return START_MS + self.wall_offset_ms + int(self.clock.seconds() * 1000)

    def end_tick(self) -> None:
        """Do what is to be done at once, but nothing in threads."""
        while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
            self.clock.advance(0)

    def settle(self) -> None:
        """Do what is to be done at once, in threads too: one job after the other, each in a tick of its own."""
        self.end_tick()
        while len(self.threads):
            self.threads.run_one()
            self.end_tick()

    def pass_time(self, seconds: float) -> None:
        """Let time go by; threads stand still."""
        self.clock.advance(seconds)
        self.end_tick()

    def client(self) -> Client:
        """A new connection."""
        return Client(self)

    def files(self) -> dict[str, bytes]:
        """The queue folder's files with their contents."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}

    def begin_stop(self) -> None:
        """Stop in order, whatever is under way; threads stand still."""
        self._is_stopping = True
        self.manager.close().addCallback(self._stopped)

    def _stopped(self, _: object) -> None:
        self.is_stopped = True

    def stop(self) -> None:
        """Stop in order, on a disk that works, and with nothing left to do; or end the stop that has begun."""
        self.disk.mend()
        self.disk.room = self.disk.inodes = None
        self.settle()
        if not self._is_stopping:
            self.begin_stop()
            self.settle()


class Machine:
    """Where servers run: starts them, stops them, and lets them crash, each over what the last one left."""

    def __init__(
        self,
        folder: Path,
        others: QueueSettings,
        queues: dict[bytes, QueueSettings],
        make_storage: MakeStorage = JournalStorage,
    ) -> None:
        self._root = folder
        self._others = others
        self._queues = queues
        self._make_storage = make_storage
        self._started: list[Server] = []
        self._folders = 0

    def _folder(self) -> Path:
        self._folders += 1
        return self._root / f"queues-{self._folders}"

    def start(self, folder: Path | None = None, room: int | None = None) -> Server:
        """A server over that folder, or over a new one."""
        return self._start(folder or self._folder(), room=room)

    def _start(
        self,
        folder: Path,
        room: int | None = None,
        arrange: Callable[[FaultyDisk], object] = lambda disk: None,
    ) -> Server:
        server = Server(
            folder,
            queues=self._queues,
            others=self._others,
            room=room,
            arrange=arrange,
            make_storage=self._make_storage,
        )
        self._started.append(server)
        return server

    def start_with_faults(self, folder: Path, arrange: Callable[[FaultyDisk], object]) -> Server:
        """A server over a copy of that folder, whose disk fails as arranged from the first operation on."""
        copy = self._folder()
        shutil.copytree(folder, copy)
        return self._start(copy, arrange=arrange)

    def restart(self, server: Server) -> Server:
        """Stop it and start another in its place."""
        self._started.remove(server)
        server.stop()
        return self.start(server.folder)

    def crash(self, server: Server) -> Server:
        """Another server over what the files hold now: the process died, the machine did not."""
        folder = self._folder()
        shutil.copytree(server.folder, folder)
        return self.start(folder)

    def kill(self, server: Server, arrange: Callable[[FaultyDisk], object] = lambda disk: None) -> Server:
        """The same, where the machine is still to fail: what no sync has reached is in its memory alone."""
        folder = self._folder()
        shutil.copytree(server.folder, folder)
        medium = server.disk.medium.carried_over(server.folder, folder)

        def go_on(disk: FaultyDisk) -> None:
            disk.medium = medium
            arrange(disk)

        return self._start(folder, arrange=go_on)

    def fail_power(self, server: Server) -> Server:
        """Another server over what the medium holds for certain now."""
        folder = self._folder()
        server.disk.medium.copy(str(server.folder).encode(), str(folder).encode())
        return self.start(folder)

    def stop_all(self) -> None:
        """Stop every server that was left."""
        for server in self._started:
            server.stop()
