"""Changes server statuses and ends sessions repeatedly, and checks that the server sets follow.

    python -m tests.torture.membership --seed 1 --changes 1000

Real servers join the sets of a real ZooKeeper. Each step changes the status of a server, freezes it until ZooKeeper has
ended its session, or kills and restarts it, or kills and restarts ZooKeeper. After each step both sets must hold
exactly the servers that the statuses require, each once. The program prints how long this took.
"""

from __future__ import annotations

import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

from benchmarks.harness import progress
from tests.child import PATIENCE_S
from tests.cluster.servers import IN_SETS, config, expected, members, set_status
from tests.cluster.zookeeper import ZooKeeper
from tests.server.running import Processes, Server, eventually, own_port
from tests.torture import command_line

PREFIX: Final = "/services/kestrel"
SESSION_TIMEOUT_S: Final = 0.4
"""Short, because the run waits until sessions end."""
MAX_DELAY_S: Final = PATIENCE_S
"""The run fails if a set takes longer to be correct."""

KINDS: Final = {"status": 80, "session lost": 12, "killed": 6, "ZooKeeper killed": 2}
"""Kinds of changes with their weights."""


class Delays(NamedTuple):
    """Times from changes of one kind until the sets were correct."""

    seconds: list[float]

    def __str__(self) -> str:
        median, latest = statistics.median(self.seconds), max(self.seconds)
        return f"{len(self.seconds):5d}   {median:8.3f}   {latest:8.3f}"


class Cluster:
    """Servers and the statuses that they should have."""

    def __init__(self, zookeeper: ZooKeeper, processes: Processes, ports: list[int], rng: random.Random) -> None:
        self._zookeeper = zookeeper
        self._processes = processes
        self._rng = rng
        self._servers = {port: self._start(port) for port in ports}
        self.statuses = dict.fromkeys(ports, "Up")

    def _start(self, port: int) -> Server:
        session_timeout = f"{round(SESSION_TIMEOUT_S * 1000)}ms"
        settings = (
            f'queuePath = "queues-{port}"\nstatusFile = "status-{port}"\n[admin]\nhttpPort = false\n'
            + config(self._zookeeper, PREFIX, session_timeout=session_timeout)
        )
        return self._processes.serve(settings, endpoint=f"tcp:{port}:interface=127.0.0.1")

    def change(self, kind: str) -> None:
        """Make a change of that kind to a random server."""
        port = self._rng.choice(list(self._servers))
        changes: dict[str, Callable[[int], None]] = {
            "status": self._change_status,
            "session lost": self._freeze,
            "killed": self._kill,
            "ZooKeeper killed": lambda _: self._kill_zookeeper(),
        }
        changes[kind](port)

    def _change_status(self, port: int) -> None:
        status = self._rng.choice([each for each in IN_SETS if each != self.statuses[port]])
        self.statuses[port] = status
        set_status(self._servers[port], status)

    def _freeze(self, port: int) -> None:
        server = self._servers[port]
        server.signal(signal.SIGSTOP)
        try:
            others = {each: status for each, status in self.statuses.items() if each != port}
            eventually(lambda: self.sets() == expected(others), "the session of a frozen server ends", MAX_DELAY_S)
        finally:
            server.signal(signal.SIGCONT)

    def _kill(self, port: int) -> None:
        self._servers[port].kill()
        self._servers[port] = self._start(port)

    def _kill_zookeeper(self) -> None:
        self._zookeeper.kill()
        self._zookeeper.start()

    def sets(self) -> dict[str, list[int]]:
        """Return the current members of the sets."""
        return members(self._zookeeper.client, PREFIX)

    def are_correct(self) -> bool:
        """Return whether the sets hold exactly the servers that the statuses require."""
        return self.sets() == expected(self.statuses)


def torture(
    zookeeper: ZooKeeper,
    processes: Processes,
    *,
    seed: int,
    changes: int,
    servers: int = 4,
    kinds: Mapping[str, int] = KINDS,
) -> dict[str, Delays]:
    """Make that many changes. Return the delays of each kind. Fail if the sets do not become correct."""
    rng = random.Random(seed)
    delays: dict[str, Delays] = defaultdict(lambda: Delays([]))
    with ExitStack() as stack:
        ports = [stack.enter_context(own_port()) for _ in range(servers)]
        cluster = Cluster(zookeeper, processes, ports, rng)
        eventually(cluster.are_correct, "all servers have joined")
        for number in range(changes):
            progress("changes", number, changes)
            [kind] = rng.choices(list(kinds), list(kinds.values()))
            cluster.change(kind)
            began = time.monotonic()
            eventually(cluster.are_correct, f"{expected(cluster.statuses)} after change {number} ({kind})", MAX_DELAY_S)
            delays[kind].seconds.append(time.monotonic() - began)
        progress("", 1, 1)
    return delays


def _run(zookeeper: ZooKeeper, processes: Processes, seed: int, rounds: int) -> int:
    delays = torture(zookeeper, processes, seed=seed, changes=rounds)
    print(f"seed {seed}: both sets were correct after each of {rounds} changes")
    print(f"{'':20}times   median s   latest s")
    for kind, each in delays.items():
        print(f"{kind:20}{each}")
    return 0  # a failed check raises an exception


if __name__ == "__main__":
    sys.exit(command_line.run_with_zookeeper(_run, __doc__, option="changes", default=1000))
