"""Kills ZooKeeper repeatedly while clients use a server that has joined it, and measures how long their requests take.

    python -m tests.torture.zookeeper_kills --seed 1 --kills 20

Two servers have the same load: one has joined server sets, and one does not use ZooKeeper. The delays of the second
server show the influence of the machine, such as the start of Java. No request may fail. The program prints how long it
takes until the sets name the server again.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from array import array
from contextlib import ExitStack
from typing import Final, NamedTuple, Self

from benchmarks.harness import percentile, progress
from tests.cluster.servers import config, expected, members
from tests.cluster.zookeeper import ZooKeeper
from tests.memcache_text import set_
from tests.server.running import Processes, Server, eventually
from tests.torture import command_line

PREFIX: Final = "/services/kestrel"
SESSION_TIMEOUT_S: Final = 1.0
PAUSE_S: Final = 0.001
"""Pause of a client between two requests, so that the clients do not use all processor time."""

CLIENTS: Final = 4
ITEM: Final = b"x" * 64

RUNNING, DOWN, STARTING = "ZooKeeper is up", "ZooKeeper is down", "ZooKeeper starts"
PHASES: Final = (RUNNING, DOWN, STARTING)

JOINED, ALONE = "joined", "alone"


class Load:
    """Client threads of one server that measure their requests. The times are grouped by the state of ZooKeeper."""

    def __init__(self, server: Server) -> None:
        self.phase = RUNNING
        self.latencies_ms: dict[str, array[float]] = {phase: array("d") for phase in PHASES}
        self.failed: list[str] = []
        self._server = server
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        queue = b"queue-%d" % number
        requests = (
            (set_(queue, ITEM), b"STORED\r\n"),
            (b"get %b\r\n" % queue, b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue, len(ITEM), ITEM)),
        )
        try:
            with self._server.connect() as client:
                while not self._stopping.wait(PAUSE_S):
                    for request, reply in requests:
                        phase, began = self.phase, time.perf_counter()
                        client.ask(request, reply)
                        self.latencies_ms[phase].append((time.perf_counter() - began) * 1000)
        except (OSError, AssertionError) as error:
            self.failed.append(str(error) or type(error).__name__)


class Outcome(NamedTuple):
    """The results of a run."""

    latencies_ms: dict[str, dict[str, array[float]]]
    """Request times by server and state of ZooKeeper."""
    rejoined_s: list[float]
    """Times from the starts of ZooKeeper until the sets were correct."""
    failed: list[str]


def torture(zookeeper: ZooKeeper, processes: Processes, *, seed: int, kills: int) -> Outcome:
    """Kill and restart ZooKeeper that many times under load."""
    rng = random.Random(seed)
    rejoined_s: list[float] = []
    settings = 'queuePath = "{name}"\nstatusFile = "{name}.status"\n[admin]\nhttpPort = false\n'
    joins = config(zookeeper, PREFIX, session_timeout=f"{round(SESSION_TIMEOUT_S * 1000)}ms")
    joined = processes.serve(settings.format(name=JOINED) + joins)
    alone = processes.serve(settings.format(name=ALONE))
    wanted = expected({joined.port: "Up"})

    def has_joined() -> bool:
        return members(zookeeper.client, PREFIX) == wanted

    eventually(has_joined, "the server has joined")
    with ExitStack() as stack:
        loads = {JOINED: stack.enter_context(Load(joined)), ALONE: stack.enter_context(Load(alone))}

        def phase(name: str, pause_s: float) -> None:
            for load in loads.values():
                load.phase = name
            time.sleep(pause_s)

        for number in range(kills):
            progress("kills", number, kills)
            phase(RUNNING, rng.uniform(0.5, 1.5))
            phase(DOWN, 0)
            zookeeper.kill()
            phase(DOWN, rng.uniform(0.1, 2 * SESSION_TIMEOUT_S))
            phase(STARTING, 0)
            zookeeper.start()
            began = time.monotonic()
            eventually(has_joined, "the server has joined both sets again")
            rejoined_s.append(time.monotonic() - began)
        progress("", 1, 1)
    failed = [reason for load in loads.values() for reason in load.failed]
    return Outcome({name: load.latencies_ms for name, load in loads.items()}, rejoined_s, failed)


def report_lines(outcome: Outcome) -> list[str]:
    """Return a report for a person."""
    lines = [f"{'':20}{'requests':>10}   p50 ms   p99 ms   worst ms"]
    for phase in PHASES:
        for server, latencies_ms in outcome.latencies_ms.items():
            each = latencies_ms[phase]
            p50, p99 = percentile(each, 50), percentile(each, 99)
            lines.append(f"{phase:20}{len(each):>10,d}   {p50:6.2f}   {p99:6.2f}   {max(each):8.1f}   {server}")
    rejoined_s = outcome.rejoined_s
    lines.append(
        f"sets correct after {statistics.median(rejoined_s):.2f} s (median), {max(rejoined_s):.2f} s (maximum); "
        f"session timeout {SESSION_TIMEOUT_S:g} s"
    )
    lines.append(f"{len(outcome.failed)} requests failed{''.join(f'; {each}' for each in outcome.failed)}")
    return lines


def _run(zookeeper: ZooKeeper, processes: Processes, seed: int, rounds: int) -> int:
    outcome = torture(zookeeper, processes, seed=seed, kills=rounds)
    print(f"seed {seed}, {rounds} kills of ZooKeeper")
    print("\n".join(report_lines(outcome)))
    return len(outcome.failed)


if __name__ == "__main__":
    sys.exit(command_line.run_with_zookeeper(_run, __doc__, option="kills", default=20))
