"""The load generator, `load.c`: built when it is needed, and one run of it."""

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
"""No run takes longer, whatever its server does."""


class WrongReply(SystemExit):
    """A server said what it should not have: ends the program with that sentence and exit status 1."""


class Load(NamedTuple):
    """What a run of the generator does; `seconds` or, where they are given, `items`."""

    protocol: str
    workload: str = "set-get"
    connections: int = 50
    size: int = 64
    """Of an item, in bytes."""
    pipeline: int = 1
    """How many requests are in flight on each connection."""
    queues: int | None = None
    """None: one for each connection, up to 50."""
    children: int = 1
    seconds: float = 1.0
    items: int | None = None
    is_behind: bool = False
    """Whether there are items already, so that those that come are others."""
    name: str = "bench"
    seed: int = 1

    def arguments(self, port: int, pid: int | None = None) -> list[str]:
        """The options of `load`."""
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
    """What came out of a run. Times in microseconds are of replies; of items, where consumers wait."""

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
    """The share of a processor that the generator itself took."""
    server_cpu_s: float

    @property
    def cpu_us(self) -> float:
        """The processor's time that the server took for a request."""
        return self.server_cpu_s * 1_000_000 / max(1, self.requests)


class Generator:
    """The program, built in that folder."""

    def __init__(self, folder: Path) -> None:
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            sys.exit("There is no C compiler for the load generator (Debian: apt-get install gcc libc6-dev).")
        self.path = folder / "load"
        subprocess.run([compiler, *FLAGS, "-o", str(self.path), str(SOURCE)], check=True)

    def start(self, load: Load, port: int, pid: int | None = None) -> subprocess.Popen[str]:
        """Begin a run. Whoever begins it ends it."""
        command = [str(self.path), *load.arguments(port, pid)]
        return child_processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, load: Load, port: int, pid: int, server: str = "server") -> Figures:
        """A whole run against the server of that process; raises `WrongReply`."""
        with self.start(load, port, pid) as process:
            try:
                return self.finish(process, server)
            finally:
                process.kill()

    @staticmethod
    def finish(process: subprocess.Popen[str], server: str = "server") -> Figures:
        """Wait for the end of a run; raises `WrongReply`."""
        out, err = process.communicate(timeout=LONGEST_S)
        if process.returncode:
            raise WrongReply(f"{server}: {err.strip()}")
        told: dict[str, Any] = json.loads(out)
        return Figures(**{name: told.get(name, 0.0) for name in Figures._fields})
