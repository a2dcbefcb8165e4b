"""Changes the statuses of servers, and has them lose their sessions, again and again; the server sets always follow.

    python -m tests.torture.membership --seed 1 --changes 1000

Real servers join the sets of a real ZooKeeper. At each step one of them changes its status, is frozen until ZooKeeper
has ended its session, or is killed and started again, or ZooKeeper itself is killed and started. After each step both
sets hold exactly the servers that the statuses say, each once. How long that took is printed.
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
"""Short: that a session is over is what happens here."""
LATEST_S: Final = PATIENCE_S
"""So late a set that is not right yet fails the run."""

KINDS: Final = {"status": 80, "session lost": 12, "killed": 6, "ZooKeeper killed": 2}
"""What happens, and how often in a hundred."""


class Told(NamedTuple):
    """How long the sets took to be right after changes of one kind."""

    seconds: list[float]

    def __str__(self) -> str:
        median, latest = statistics.median(self.seconds), max(self.seconds)
        return f"{len(self.seconds):5d}   {median:8.3f}   {latest:8.3f}"


class Cluster:
    """Some servers, and the statuses that they should have."""

    def __init__(self, zookeeper: ZooKeeper, processes: Processes, ports: list[int], dice: random.Random) -> None:
        self._zookeeper = zookeeper
        self._processes = processes
        self._dice = dice
        self._servers = {port: self._start(port) for port in ports}
        self.statuses = dict.fromkeys(ports, "Up")

    def _start(self, port: int) -> Server:
        session_timeout = f"{round(SESSION_TIMEOUT_S * 1000)}ms"
        given = (
            f'queuePath = "queues-{port}"\nstatusFile = "status-{port}"\n[admin]\nhttpPort = false\n'
            + config(self._zookeeper, PREFIX, session_timeout=session_timeout)
        )
        return self._processes.serve(given, endpoint=f"tcp:{port}:interface=127.0.0.1")

    def change(self, kind: str) -> None:
        """Have something of that kind happen to one of them."""
        port = self._dice.choice(list(self._servers))
        changes: dict[str, Callable[[int], None]] = {
            "status": self._change_status,
            "session lost": self._freeze,
            "killed": self._kill,
            "ZooKeeper killed": lambda _: self._kill_zookeeper(),
        }
        changes[kind](port)

    def _change_status(self, port: int) -> None:
        status = self._dice.choice([each for each in IN_SETS if each != self.statuses[port]])
        self.statuses[port] = status
        set_status(self._servers[port], status)

    def _freeze(self, port: int) -> None:
        server = self._servers[port]
        server.signal(signal.SIGSTOP)
        try:
            others = {each: status for each, status in self.statuses.items() if each != port}
            eventually(lambda: self.sets() == expected(others), "the session of a frozen server ends", LATEST_S)
        finally:
            server.signal(signal.SIGCONT)

    def _kill(self, port: int) -> None:
        self._servers[port].kill()
        self._servers[port] = self._start(port)

    def _kill_zookeeper(self) -> None:
        self._zookeeper.kill()
        self._zookeeper.start()

    def sets(self) -> dict[str, list[int]]:
        """Who is in them now."""
        return members(self._zookeeper.client, PREFIX)

    def are_right(self) -> bool:
        """Whether the sets hold exactly those whom the statuses say."""
        return self.sets() == expected(self.statuses)


def torture(
    zookeeper: ZooKeeper,
    processes: Processes,
    *,
    seed: int,
    changes: int,
    servers: int = 4,
    kinds: Mapping[str, int] = KINDS,
) -> dict[str, Told]:
    """So many changes of these kinds. Returns how long the sets took to be right; fails when they never are."""
    dice = random.Random(seed)
    told: dict[str, Told] = defaultdict(lambda: Told([]))
    with ExitStack() as stack:
        ports = [stack.enter_context(own_port()) for _ in range(servers)]
        cluster = Cluster(zookeeper, processes, ports, dice)
        eventually(cluster.are_right, "all servers have joined")
        for number in range(changes):
            progress("changes", number, changes)
            [kind] = dice.choices(list(kinds), list(kinds.values()))
            cluster.change(kind)
            began = time.monotonic()
            eventually(cluster.are_right, f"{expected(cluster.statuses)} after change {number} ({kind})", LATEST_S)
            told[kind].seconds.append(time.monotonic() - began)
        progress("", 1, 1)
    return told


def _run(zookeeper: ZooKeeper, processes: Processes, seed: int, rounds: int) -> int:
    told = torture(zookeeper, processes, seed=seed, changes=rounds)
    print(f"seed {seed}: both sets were exactly right after each of {rounds} changes")
    print(f"{'':20}times   median s   latest s")
    for kind, each in told.items():
        print(f"{kind:20}{each}")
    return 0  # what fails raises


if __name__ == "__main__":
    sys.exit(command_line.run_over_zookeeper(_run, __doc__ or "", rounds="changes", default=1000))
