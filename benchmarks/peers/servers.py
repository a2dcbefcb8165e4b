"""The servers that are compared: how each is started over a folder of its own, asked and stopped.

All listen on the loopback alone, on ports that the system has picked, and keep what they keep in their folder.
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
"""How safe a reply is, of these three: when what it says is on the disk itself."""

CEILING: Final = "ceiling"

START_S: Final = 60.0
STOP_S: Final = 30.0
REST_S: Final = 10.0
LOOKS_EVERY_S: Final = 0.01
IDLE_SHARE: Final = 0.1
STARTS: Final = 5
"""So often a port is tried that the system says is free: another program may be faster."""
MOST_ITEM_BYTES: Final = 16 << 20
MOST_CLIENTS: Final = 10_000


class Setting(NamedTuple):
    """What a server is started with."""

    sync: str = NEVER
    max_memory_mib: int | None = None
    """Of a queue, for ours; None: the default."""


DEFAULT: Final = Setting()


class Cores(NamedTuple):
    """Where the two sides run; the same core where there is only one."""

    generator: int
    server: int


def cores() -> Cores:
    """The first two that this process may run on."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[0], allowed[-1] if len(allowed) < 2 else allowed[1])


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run there, and whatever is started meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, core: int) -> None:
    """Let all threads of a process, and those to come, run on that core alone."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), {core})


class Program(NamedTuple):
    """A server that can be compared."""

    name: str
    protocol: str
    command: Callable[[Path, int, Setting], list[str]]
    """Its command line over a folder and a port; ours is not called: it picks the port itself."""
    version: Callable[[], str | None]
    """None: it is not here."""
    changes: tuple[str, ...] = ()
    """Of ours: what stands in place of twistd, before its arguments."""

    @property
    def is_ours(self) -> bool:
        """Whether it is the server of this repository."""
        return bool(self.changes)


class Running:
    """A server that listens."""

    def __init__(self, program: Program, pid: int, port: int, command: Sequence[str]) -> None:
        self.program = program
        self.name = program.name
        self.pid = pid
        self.port = port
        self.command = shlex.join(command)

    def work(self, generator: Generator, load: Load) -> Figures:
        """Have it do that, asked in its own words, and come to rest; raises `WrongReply`."""
        figures = generator.run(load._replace(protocol=self.program.protocol), self.port, self.pid, self.name)
        self._rest()
        return figures

    def _rest(self) -> None:
        """Return when it does nothing any more: it is not to say good-bye to thousands while others are measured."""
        watch = Watch(self.pid)
        seen, deadline = watch.now(), time.monotonic() + REST_S
        while time.monotonic() < deadline:
            time.sleep(LOOKS_EVERY_S)
            before, seen = seen, watch.now()
            if seen.cpu_s - before.cpu_s < IDLE_SHARE * LOOKS_EVERY_S:
                break

    def memory_bytes(self) -> int:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


# Those of others.


def _says(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0]


def _beanstalkd(folder: Path, port: int, setting: Setting) -> list[str]:
    sync = {NEVER: ["-F"], EVERY_100_MS: ["-f", "100"], EACH_REPLY: ["-f", "0"]}[setting.sync]
    return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-z", str(MOST_ITEM_BYTES), *sync]


def _redis(folder: Path, port: int, setting: Setting) -> list[str]:
    sync = "always" if setting.sync == EACH_REPLY else "everysec"  # the nearest that it has
    named = {"bind": "127.0.0.1", "port": port, "dir": folder, "save": "", "daemonize": "no"}
    named |= {"appendonly": "yes", "appendfsync": sync, "maxclients": MOST_CLIENTS}
    return ["redis-server", *(word for name, value in named.items() for word in (f"--{name}", str(value)))]


def _memcached(_: Path, port: int, setting: Setting) -> list[str]:
    as_root = ["-u", "root"] if os.getuid() == 0 else []
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-c", str(MOST_CLIENTS)]
    return [*command, "-m", "1024", *as_root]


BEANSTALKD: Final = Program("beanstalkd", "beanstalk", _beanstalkd, lambda: _says("beanstalkd", "-v"))
REDIS: Final = Program("redis", "redis", _redis, lambda: _says("redis-server", "--version"))
MEMCACHED: Final = Program("memcached", "cache", _memcached, lambda: _says("memcached", "-V"))


def ceiling(load: Path) -> Program:
    """The least that can answer at all (`load serve`): no server can be seen to be faster than that."""
    return Program(CEILING, "memcache", lambda _, port, __: [str(load), "serve", "--port", str(port)], lambda: "")


# Ours.


def _no_command(folder: Path, port: int, setting: Setting) -> list[str]:
    raise ValueError("ours is started by its own means")


def _our_version() -> str:
    from kestrel import __version__

    return f"kestrel {__version__}, Python {sys.version.split()[0]}"


def ours(name: str, *changes: str) -> Program:
    """Our server, with other words in place of twistd."""
    return Program(name, "memcache", _no_command, _our_version, changes or (str(TWISTD),))


LAUNCH: Final = (sys.executable, "-m", "benchmarks.peers.twistd_launcher")
COMPILED: Final = "compiled"
PURE: Final = "pure"
IS_PURE: Final = "KESTREL_PURE=1"

KESTREL: Final = ours("kestrel")
KESTREL_PURE: Final = ours("kestrel, pure", "/usr/bin/env", IS_PURE, str(TWISTD))
SYNC_EACH: Final = ours("kestrel, a sync each", *LAUNCH, "--sync-each")
"""Without group commit (`benchmarks/peers/twistd_launcher.py`)."""


def watched(path: Path) -> Program:
    """Ours, with what its reactor is watched by (`benchmarks/peers/twistd_launcher.py`)."""
    return ours(KESTREL.name, *LAUNCH, "--watch", str(path))


def build(running: Running) -> str:
    """Whether ours runs `compiled` or `pure`, as it says itself; one that says nothing is pure."""
    with Client(running.port) as client:
        return client.stats().get("build", PURE)


def config_text(setting: Setting) -> str:
    """The configuration of ours: everything is as by default, but for what the setting says."""
    sync = {NEVER: '"never"', EVERY_100_MS: '"100ms"', EACH_REPLY: "0"}[setting.sync]
    memory = "" if setting.max_memory_mib is None else f'maxMemorySize = "{setting.max_memory_mib}MiB"\n'
    return f'queuePath = "queues"\nstatusFile = "status"\n[default]\nsyncJournal = {sync}\n{memory}'


# Started and stopped.


@contextmanager
def running(program: Program, folder: Path, setting: Setting, core: int | None = None) -> Iterator[Running]:
    """A server of that program over a new folder, on that core; it is stopped and its folder removed in the end."""
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
                sys.exit(f"{program.name} does not run:\n{server.stdout()}{server.stderr()}")
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
    """Whether the process comes to listen there; and not another one, for which ours would have ended."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return process.poll() is None
        time.sleep(0.01)
    return False
