"""The compared servers: how each is started over its own folder, used and stopped.

All listen on the loopback only, on ports that the system has chosen, and keep their files in their folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.peers import child_processes
from benchmarks.peers.generator import Figures, Generator, Load
from benchmarks.process_cost import Watch
from tests.server.running import ANY_PORT, TWISTD, Client, Processes, eventually, is_serving_in

NEVER: Final = "never"
EVERY_100_MS: Final = "100 ms"
EACH_REPLY: Final = "each reply"
"""The three settings of durability: when a reply's data is synced."""

CEILING: Final = "ceiling"

START_S: Final = 60.0
STOP_S: Final = 30.0
REST_S: Final = 10.0
LOOKS_EVERY_S: Final = 0.01
IDLE_SHARE: Final = 0.1
STARTS: Final = 5
"""The number of free ports to try. Another program may take a port first."""
MOST_ITEM_BYTES: Final = 16 << 20
MOST_CLIENTS: Final = 10_000


class Setting(NamedTuple):
    """The settings of a server."""

    sync: str = NEVER
    max_memory_mib: int | None = None
    """maxMemorySize of kestrel's queues in MiB; None for the default."""


DEFAULT: Final = Setting()


class Cores(NamedTuple):
    """The cores of the generator and of the server. They are the same on a machine with one core."""

    generator: int
    server: int


def cores() -> Cores:
    """Return the first two cores that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[0], allowed[-1] if len(allowed) < 2 else allowed[1])


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run this process and the processes it starts on that core, while the block runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, core: int) -> None:
    """Let all present and future threads of a process run on that core only."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), {core})


class Program(NamedTuple):
    """A server that can be compared."""

    name: str
    protocol: str
    command: Callable[[Path, int, Setting], list[str]]
    """Returns the command line for a folder and a port. Not called for kestrel, which chooses its port itself."""
    version: Callable[[], str | None]
    """Returns the version, or None if the server is not installed."""
    changes: tuple[str, ...] = ()
    """For kestrel: the words that replace the twistd command."""

    @property
    def is_ours(self) -> bool:
        """True if this is kestrel."""
        return bool(self.changes)


class Running:
    """A server that is listening."""

    def __init__(self, program: Program, pid: int, port: int, command: Sequence[str]) -> None:
        self.program = program
        self.name = program.name
        self.pid = pid
        self.port = port
        self.command = shlex.join(command)

    def work(self, generator: Generator, load: Load) -> Figures:
        """Run a load against the server, and wait until it is idle. Raise WrongReply for a wrong reply."""
        figures = generator.run(load._replace(protocol=self.program.protocol), self.port, self.pid, self.name)
        self._rest()
        return figures

    def _rest(self) -> None:
        """Wait until the server is idle. Closing thousands of connections must not disturb the next measurement."""
        watch = Watch(self.pid)
        seen, deadline = watch.now(), time.monotonic() + REST_S
        while time.monotonic() < deadline:
            time.sleep(LOOKS_EVERY_S)
            before, seen = seen, watch.now()
            if seen.cpu_s - before.cpu_s < IDLE_SHARE * LOOKS_EVERY_S:
                break

    def memory_bytes(self) -> int:
        """Return the resident memory in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


# Other servers.


def _says(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0]


def _beanstalkd(folder: Path, port: int, setting: Setting) -> list[str]:
    sync = {NEVER: ["-F"], EVERY_100_MS: ["-f", "100"], EACH_REPLY: ["-f", "0"]}[setting.sync]
    return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-z", str(MOST_ITEM_BYTES), *sync]


def _redis(folder: Path, port: int, setting: Setting) -> list[str]:
    # The setting of Redis that is nearest.
    sync = "always" if setting.sync == EACH_REPLY else "everysec"
    named = {"bind": "127.0.0.1", "port": port, "dir": folder, "save": "", "daemonize": "no"}
    named |= {"appendonly": "yes", "appendfsync": sync, "maxclients": MOST_CLIENTS}
    return ["redis-server", *(word for name, value in named.items() for word in (f"--{name}", str(value)))]


def _memcached(_: Path, port: int, setting: Setting) -> list[str]:
    as_root = ["-u", "root"] if os.getuid() == 0 else []
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-c", str(MOST_CLIENTS)]
    return [*command, "-m", "1024", "-I", f"{MOST_ITEM_BYTES}", *as_root]


BEANSTALKD: Final = Program("beanstalkd", "beanstalk", _beanstalkd, lambda: _says("beanstalkd", "-v"))
REDIS: Final = Program("redis", "redis", _redis, lambda: _says("redis-server", "--version"))
MEMCACHED: Final = Program("memcached", "cache", _memcached, lambda: _says("memcached", "-V"))


def ceiling(load: Path) -> Program:
    """Return the minimal server (`load serve`): an upper bound for the results of any server."""
    return Program(CEILING, "memcache", lambda _, port, __: [str(load), "serve", "--port", str(port)], lambda: "")


# Kestrel.


def _no_command(folder: Path, port: int, setting: Setting) -> list[str]:
    raise ValueError("kestrel has no command line: it is started by Processes")


def _our_version() -> str:
    from kestrel import __version__

    return f"kestrel {__version__}, Python {sys.version.split()[0]}"


def ours(name: str, *changes: str) -> Program:
    """Return kestrel as a program. `changes` replace the twistd command."""
    return Program(name, "memcache", _no_command, _our_version, changes or (str(TWISTD),))


LAUNCH: Final = (sys.executable, "-m", "benchmarks.peers.twistd_launcher")
COMPILED: Final = "compiled"
PURE: Final = "pure"
IS_PURE: Final = "KESTREL_PURE=1"

KESTREL: Final = ours("kestrel")
KESTREL_PURE: Final = ours("kestrel, pure", "/usr/bin/env", IS_PURE, str(TWISTD))
SYNC_EACH: Final = ours("kestrel, a sync each", *LAUNCH, "--sync-each")
"""Kestrel without group commit (see `twistd_launcher.py`)."""


def before(checkout: Path) -> Program:
    """Return the kestrel of another checkout, for example of an older commit. It is compiled if the checkout is."""
    return ours("kestrel, before", "/usr/bin/env", f"PYTHONPATH={checkout.resolve()}", str(TWISTD))


def watched(path: Path) -> Program:
    """Return kestrel with a watched reactor (see `twistd_launcher.py`). It writes to that path."""
    return ours(KESTREL.name, *LAUNCH, "--watch", str(path))


def build(running: Running) -> str:
    """Return the build that the server reports: `compiled` or `pure`. A server without a report counts as pure."""
    with Client(running.port) as client:
        return client.stats().get("build", PURE)


def config_text(setting: Setting) -> str:
    """Return kestrel's configuration: the defaults, except for the setting."""
    sync = {NEVER: '"never"', EVERY_100_MS: '"100ms"', EACH_REPLY: "0"}[setting.sync]
    memory = "" if setting.max_memory_mib is None else f'maxMemorySize = "{setting.max_memory_mib}MiB"\n'
    return f'queuePath = "queues"\nstatusFile = "status"\n[default]\nsyncJournal = {sync}\n{memory}'


# Start and stop.


@contextmanager
def running(program: Program, folder: Path, setting: Setting, core: int | None = None) -> Iterator[Running]:
    """Run a server over a new folder on that core. When the block ends, stop it and remove the folder."""
    folder.mkdir(parents=True)
    try:
        start = _our_process if program.is_ours else _others_process
        with start(program, folder, setting, core) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _our_process(program: Program, folder: Path, setting: Setting, core: int | None) -> Iterator[Running]:
    with Processes(folder) as processes:
        processes.command = program.changes
        server = processes.start(config_text(setting), "--text", ANY_PORT, "--thrift", ANY_PORT)
        if core is not None:
            pin(server.pid, core)

        def serves() -> bool:
            if server.process.poll() is not None:
                sys.exit(f"{program.name} does not start:\n{server.stdout()}{server.stderr()}")
            return is_serving_in(server.logged())

        eventually(serves, "the server serves", START_S)
        words = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")[:-1]
        yield Running(program, server.pid, server.port, words)
        server.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_S)


@contextmanager
def _others_process(program: Program, folder: Path, setting: Setting, core: int | None) -> Iterator[Running]:
    process, port, command = _listening(program, folder, setting)
    try:
        if core is not None:
            pin(process.pid, core)
        yield Running(program, process.pid, port, command)
    finally:
        process.kill()
        process.wait()


def _listening(program: Program, folder: Path, setting: Setting) -> tuple[subprocess.Popen[bytes], int, Sequence[str]]:
    output = folder / "output"
    for _ in range(STARTS):
        port = _free_port()
        command = program.command(folder, port, setting)
        with output.open("wb") as out:
            process = child_processes.start(command, cwd=folder, stdout=out, stderr=out)
        is_reached = False
        try:
            is_reached = _is_reached(process, port)
        finally:
            if not is_reached:
                process.kill()
                process.wait()
        if is_reached:
            return process, port, command
    sys.exit(f"{program.name} does not start:\n{output.read_text(errors='replace')}")


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _is_reached(process: subprocess.Popen[bytes], port: int) -> bool:
    """Return True once the process listens on the port. If another process has taken the port, ours ends."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return process.poll() is None
        time.sleep(0.01)
    return False
