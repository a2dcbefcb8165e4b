"""The load generator: builds `load.c` and runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.peers import child_processes

SOURCE: Final = Path(__file__).with_name("load.c")
COMPILERS: Final = ("gcc", "cc", "clang")
FLAGS: Final = ("-O2", "-std=c11")

LONGEST_S: Final = 300.0
"""The time limit of a run in seconds."""


class WrongReply(SystemExit):
    """A wrong reply. Ends the program with a message and exit status 1."""


class Load(NamedTuple):
    """The work of one run. It ends after `seconds`, or after `items` if that is set."""

    protocol: str
    workload: str = "set-get"
    connections: int = 50
    size: int = 64
    """Bytes of an item."""
    pipeline: int = 1
    """Requests in flight on each connection."""
    queues: int | None = None
    """The number of queues; None for one per connection, up to 50."""
    children: int = 1
    seconds: float = 1.0
    items: int | None = None
    is_behind: bool = False
    """True if the queues hold other items already, so that replies cannot be predicted."""
    name: str = "bench"
    seed: int = 1

    def arguments(self, port: int, pid: int | None = None) -> list[str]:
        """Return the command line options of `load`."""
        named: dict[str, object | None] = {
            "protocol": self.protocol,
            "port": port,
            "workload": self.workload,
            "connections": self.connections,
            "size": self.size,
            "pipeline": self.pipeline,
            "queues": self.queues,
            "children": self.children,
            "seconds": f"{self.seconds:.3f}",
            "items": self.items,
            "name": self.name,
            "seed": self.seed,
            "pid": pid,
        }
        words = [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]
        return words + ["--behind"] * self.is_behind


class Figures(NamedTuple):
    """The results of a run. Latencies are in microseconds, of replies; with waiting consumers, of items."""

    requests: int
    items: int
    seconds: float
    requests_per_s: float
    items_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    busy: float
    """The share of a core that the generator used."""
    server_cpu_s: float
    server_user_s: float

    @property
    def cpu_us(self) -> float:
        """The server's CPU time per request in microseconds."""
        return self.server_cpu_s * 1_000_000 / max(1, self.requests)

    @property
    def user_us(self) -> float:
        """The server's own part of `cpu_us`, without the kernel's."""
        return self.server_user_s * 1_000_000 / max(1, self.requests)


class Generator:
    """The program, built in that folder."""

    def __init__(self, folder: Path) -> None:
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            sys.exit("The load generator needs a C compiler (Debian: apt-get install gcc libc6-dev).")
        self.path = folder / "load"
        subprocess.run([compiler, *FLAGS, "-o", str(self.path), str(SOURCE)], check=True)

    def start(self, load: Load, port: int, pid: int | None = None) -> subprocess.Popen[str]:
        """Start a run. The caller must end the process."""
        command = [str(self.path), *load.arguments(port, pid)]
        return child_processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, load: Load, port: int, pid: int, server: str = "server") -> Figures:
        """Do a whole run against the server with that process id. Raise WrongReply for a wrong reply."""
        with self.start(load, port, pid) as process:
            try:
                return self.finish(process, server)
            finally:
                process.kill()

    @staticmethod
    def finish(process: subprocess.Popen[str], server: str = "server") -> Figures:
        """Wait for the end of a run, and return its results. Raise WrongReply for a wrong reply."""
        out, err = process.communicate(timeout=LONGEST_S)
        if process.returncode:
            raise WrongReply(f"{server}: {err.strip()}")
        told: dict[str, Any] = json.loads(out)
        return Figures(**{name: told.get(name, 0.0) for name in Figures._fields})
