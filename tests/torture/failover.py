"""Kills the primary of a replicated PostgreSQL under load, and checks that no acknowledged item is lost.

    python -m tests.torture.failover --seed 1 --kills 5

Three nodes of Patroni with synchronous replication, their etcd and a server run as in examples/replicated. The clients
are those of `tests.torture.database`. Each kill ends Patroni and all PostgreSQL processes of the primary with SIGKILL,
and the node stays down until a standby has taken over and the server stores items again. The server process continues
through all failovers.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from examples.replicated.run import ReplicatedDatabase
from tests.server.running import Processes, eventually
from tests.torture import command_line
from tests.torture.check_report import CheckReport
from tests.torture.database import CONFIG, TrackedQueue, finish_load, new_load, queues_of, totals
from tests.torture.kill_restart import start

NODES: Final = 3
"""With two, no put is acknowledged while one of them is down."""
ITEMS: Final = 10_000_000
"""More items than the clients put."""
LOAD_S: Final = (2.0, 6.0)
"""Range of the time under load between the return of a node and the next kill."""
MOST_S: Final = 180.0
"""Time limit for a failover on a busy machine."""
AT_LEAST: Final = 200
"""Items that are stored after each failover before the killed node returns."""


def torture(folder: Path, *, seed: int, kills: int, ttl: int) -> int:
    """Kill the primary that often. Print a report and return the number of failed checks."""
    rng = random.Random(seed)
    report = CheckReport()
    print(f"seed {seed}, {kills} kills, {NODES} nodes, ttl {ttl} s", flush=True)
    workers = new_load(seed, ITEMS)
    queues = queues_of(workers)
    outages_s: list[float] = []
    folder.chmod(0o755)  # PostgreSQL runs as another user
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(folder))
        database = ReplicatedDatabase(stack, folder / "database", NODES, ttl)
        stack.callback(kill_all, database)
        server = processes.serve(CONFIG, "--storage", f"postgres:{database.conninfo}")
        for queue in queues:
            queue.put_limit = ITEMS
        start(server, workers)
        for kill in range(1, kills + 1):
            time.sleep(rng.uniform(*LOAD_S))
            victim = database.primary()
            assert victim is not None, "no node is the primary"
            for queue in queues:
                queue.watch_pauses()
            before = stored(queues)
            victim.kill()
            wait_until_stored(queues, before)
            outages_s.append(max(queue.longest_pause_s for queue in queues))
            print(f"kill {kill} ({victim.name}): {outages_s[-1]:.1f} s without puts; {totals(queues)}", flush=True)
            victim.start_again()
            eventually(lambda: is_complete(database), "the killed node is back", MOST_S)
        for queue in queues:
            queue.put_limit = 0
        eventually(lambda: all(queue.stored <= queue.confirmed for queue in queues), "the queues are empty", MOST_S)
        finish_load(workers, server, report)
        report.check(server.process.poll() is None, "the server has run through all failovers")
        server.stop()
    outages_s.sort()
    middle_s = outages_s[len(outages_s) // 2]
    print(f"seconds without puts: {outages_s[0]:.1f} to {outages_s[-1]:.1f}, median {middle_s:.1f}")
    return report.finish()


def stored(queues: list[TrackedQueue]) -> list[int]:
    """Return the numbers of stored items of the queues."""
    return [len(queue.stored) for queue in queues]


def wait_until_stored(queues: list[TrackedQueue], before: list[int]) -> None:
    """Wait until each queue has stored items after an outage."""

    def has_stored() -> bool:
        errors = [each for queue in queues for each in queue.errors]
        assert not errors, errors
        return all(now - then >= AT_LEAST for now, then in zip(stored(queues), before, strict=True))

    eventually(has_stored, "the server stores items again", MOST_S)


def is_complete(database: ReplicatedDatabase) -> bool:
    """Return True if there is a synchronous standby and no node is down."""
    time.sleep(0.2)  # each question costs Patroni some time
    return database.is_replicated() and all(node.is_primary() or node.is_replica() for node in database.nodes)


def kill_all(database: ReplicatedDatabase) -> None:
    """Kill all nodes. An orderly stop would take longer."""
    for node in database.nodes:
        node.kill()


if __name__ == "__main__":
    sys.exit(command_line.run_in_folder(torture, command_line.new_parser(__doc__, kills=5, ttl=20)))
