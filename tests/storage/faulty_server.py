"""A whole server over a durable backend and a faulty disk. A test controls its clock, its threads and its clients."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from kestrel.config.model import Config, QueueOverrides, QueueSettings
from kestrel.config.resolved import ResolvedConfig
from kestrel.net.connection import Connection
from kestrel.storage.journal.storage import JournalStorage
from kestrel.testing.faults import FaultyDisk
from kestrel.testing.server import MemoryServer
from kestrel.testing.threads import SteppedThreads
from tests.memcache_text import END
from tests.storage.backends import MakeStorage

START_MS = 1_700_000_000_000
RESERVE_BYTES = 1000

NEVER = QueueSettings()
SYNCED = QueueSettings(sync_journal_ms=0)
PERIOD_S = 0.5
PERIODIC = QueueSettings(sync_journal_ms=500)
IN_MEMORY = QueueSettings(keep_journal=False)

DELETED = b"DELETED\r\n"

Arrange = Callable[[FaultyDisk], object]
"""Configures the faults of a disk before the server starts."""


def is_server_error(reply: bytes) -> bool:
    """Whether the reply is exactly one SERVER_ERROR with a reason."""
    return reply.startswith(b"SERVER_ERROR ") and len(reply) > 15 and reply.find(b"\r\n") == len(reply) - 2


def drain(server: Server, queue: bytes) -> list[bytes]:
    """Get all items of a queue as a client."""
    client = server.client()
    items: list[bytes] = []
    while (reply := client.talk(b"get %b\r\n" % queue)) != END:
        head, _, rest = reply.partition(b"\r\n")
        assert head.startswith(b"VALUE %b 0 " % queue), reply
        items.append(rest[: int(head.split()[3])])
    return items


def as_overrides(settings: QueueSettings) -> QueueOverrides:
    """Return overrides that set every setting."""
    return QueueOverrides(attrs.asdict(settings, recurse=False))


def no_faults(disk: FaultyDisk) -> None:
    """Leave the disk as it is."""


class Client:
    """A connection to a `Server`."""

    def __init__(self, server: Server, protocol: Connection) -> None:
        self.server = server
        self.transport = StringTransport()
        self.protocol = protocol
        self.protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        """Send a request in the current tick."""
        self.protocol.dataReceived(data)

    def ask(self, data: bytes) -> bytes:
        """Send a request, end the tick without running threads, and return the reply so far."""
        self.send(data)
        self.server.end_tick()
        return self.received()

    def talk(self, data: bytes) -> bytes:
        """Send a request, run ticks and threads until the server is idle, and return the reply."""
        self.send(data)
        self.server.settle()
        return self.received()

    def received(self) -> bytes:
        """Return the bytes received since the last call."""
        data = self.transport.value()
        self.transport.clear()
        return data

    def half_close(self) -> None:
        """Close the sending direction. The client still reads."""
        self.protocol.readConnectionLost()

    def hang_up(self) -> None:
        """Lose the connection."""
        self.protocol.connectionLost()

    @property
    def was_hung_up_on(self) -> bool:
        """True if the server closed the connection."""
        return self.transport.disconnecting


class Server:
    """A started server over a folder, with the settings of a `Machine`.

    `room` is the free space of the disk in bytes. `is_stopped` becomes True when the server has released its folder.
    """

    def __init__(
        self, machine: Machine, folder: Path, *, room: int | None = None, arrange: Arrange = no_faults
    ) -> None:
        self.machine = machine
        self.folder = folder
        self.clock = Clock()
        self.threads = SteppedThreads()
        self.disk = FaultyDisk()
        self.disk.room = room
        arrange(self.disk)
        self.wall_offset_ms = 0
        self._settings = dict(machine.queues)
        self._others = machine.others
        self._is_stopping = False
        self.is_stopped = False
        self.storage = machine.make_storage(
            os.fsencode(folder),
            self.clock,
            self.threads,
            reserve_bytes=RESERVE_BYTES,
            now_ms=self.now_ms,
            disk=self.disk,
        )
        self._server = MemoryServer(self.storage, config=self._config(), clock=self.clock)
        self.manager = self._server.manager
        self.start_failures: list[Failure] = []
        self._server.started.addErrback(self.start_failures.append)
        self.threads.run_all()

    def _config(self) -> Config:
        queues = {name: as_overrides(settings) for name, settings in self._settings.items()}
        return Config(default=as_overrides(self._others), queues=queues, max_open_transactions=10)

    def reload(self, settings: QueueSettings, *names: bytes) -> None:
        """Apply the settings to the queues with these names. Without names, to all queues without own settings."""
        self._settings.update(dict.fromkeys(names, settings))
        if not names:
            self._others = settings
        self._server.core.use(ResolvedConfig(self._config()))

    def now_ms(self) -> int:
        """Return the time of the wall clock, which a test steps with `wall_offset_ms`."""
        return START_MS + self.wall_offset_ms + int(self.clock.seconds() * 1000)

    def end_tick(self) -> None:
        """Run all calls that are due. No thread runs."""
        self._server.settle()

    def settle(self) -> None:
        """Run all calls that are due, and all thread jobs, each in a tick of its own."""
        self.end_tick()
        while len(self.threads):
            self.threads.run_one()
            self.end_tick()

    def pass_time(self, seconds: float) -> None:
        """Advance the clock. No thread runs."""
        self._server.advance(seconds)

    def client(self) -> Client:
        """Return a new connection."""
        return Client(self, self._server.factories["memcache"].buildProtocol(None))

    def files(self) -> dict[str, bytes]:
        """Return the files of the queue folder with their contents."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}

    def begin_stop(self) -> None:
        """Begin an orderly stop. No thread runs."""
        self._is_stopping = True
        self.manager.close().addCallback(self._stopped)

    def _stopped(self, _: object) -> None:
        self.is_stopped = True

    def stop(self) -> None:
        """Repair the disk, let pending work end, and stop in order. A stop that has begun is completed."""
        self.disk.mend()
        self.disk.room = self.disk.inodes = None
        self.settle()
        if not self._is_stopping:
            self.begin_stop()
            self.settle()

    # Later servers over the files of this one.

    def _copied_folder(self) -> Path:
        return Path(shutil.copytree(self.folder, self.machine.new_folder()))

    def restarted(self) -> Server:
        """Stop, and start another server over the folder."""
        self.machine.running.remove(self)
        self.stop()
        return self.machine.start(self.folder)

    def crashed(self, arrange: Arrange = no_faults) -> Server:
        """Start a server over the current files, as after a crash of the process."""
        return self.machine.start(self._copied_folder(), arrange=arrange)

    def killed(self, arrange: Arrange = no_faults) -> Server:
        """Start a server over the current files as `crashed` does. A later power failure still loses unsynced data."""
        folder = self._copied_folder()
        medium = self.disk.medium.carried_over(self.folder, folder)

        def carry_over(disk: FaultyDisk) -> None:
            disk.medium = medium
            arrange(disk)

        return self.machine.start(folder, arrange=carry_over)

    def without_power(self) -> Server:
        """Start a server over the durable files, as after a power failure."""
        folder = self.machine.new_folder()
        self.disk.medium.copy(os.fsencode(self.folder), os.fsencode(folder))
        return self.machine.start(folder)


class Machine:
    """Starts servers, and stops those that still run at the end of a test."""

    def __init__(
        self,
        folder: Path,
        others: QueueSettings,
        queues: dict[bytes, QueueSettings],
        make_storage: MakeStorage = JournalStorage,
    ) -> None:
        self._root = folder
        self.others = others
        """Settings of queues without own settings, for the next server."""
        self.queues = queues
        self.make_storage = make_storage
        self.running: list[Server] = []
        self._folders = 0

    def new_folder(self) -> Path:
        """Return the path of a folder that does not exist yet."""
        self._folders += 1
        return self._root / f"queues-{self._folders}"

    def start(self, folder: Path | None = None, room: int | None = None, arrange: Arrange = no_faults) -> Server:
        """Start a server over the folder, or over a new one."""
        server = Server(self, folder or self.new_folder(), room=room, arrange=arrange)
        self.running.append(server)
        return server

    def stop_all(self) -> None:
        """Stop all servers that still run."""
        for server in self.running:
            server.stop()
