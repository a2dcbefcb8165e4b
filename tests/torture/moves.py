"""Kills the server repeatedly while items expire into another queue, fail there, and move to an error queue.

    python -m tests.torture.moves --seed 1 --items 20000 --kills 10

Numbered items are put to `later` and expire into `jobs`. Clients open them there, and then close or abort them or
disconnect. Items that fail three times move to `dead`. At the end each acknowledged item must have been closed or be in
one of the queues. Only a kill may duplicate an item.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from typing import Final

from kestrel.queues.moves import MOVES_PER_SLICE
from tests.server.running import Client, Processes, Server
from tests.torture import command_line
from tests.torture.check_report import CheckReport
from tests.torture.kill_restart import Worker, Writer, start, stop

CONFIG: Final = """
queuePath = "queues"
maxOpenTransactions = 100
expirationTimerFrequency = "50ms"

[default]
syncJournal = {sync}

[[queues]]
name = "later"
maxAge = "100ms"
expireToQueue = "jobs"

[[queues]]
name = "jobs"
maxRedeliveries = 3
errorQueue = "dead"
"""
SYNCS: Final = ('"never"', '"20ms"', "0")
"""Values of `syncJournal`. Each restart uses the next one."""


class Consumer(Worker):
    """Opens items of `jobs`, and closes, aborts or abandons them. `closed` counts by number."""

    def __init__(self, closed: Counter[int], possibly_closed: set[int], rng: random.Random) -> None:
        super().__init__(rng)
        self._closed, self._possibly_closed = closed, possibly_closed

    def step(self, client: Client) -> bool:
        """Open an item and finish it. Return False to reconnect."""
        data = client.get(b"jobs/open")
        if data is None:
            time.sleep(0.005)
            return True
        action = self.rng.choices(("close", "abort", "disconnect"), (6, 3, 1))[0]
        if action == "close":
            self._possibly_closed.add(int(data))
            client.ask(b"get jobs/close\r\n", b"END\r\n")
            self._closed[int(data)] += 1
        elif action == "abort":
            client.ask(b"get jobs/abort\r\n", b"END\r\n")
        return action != "disconnect"


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put that many items over that many kills. Print a report and return the number of failed checks."""
    rng = random.Random(seed)
    report = CheckReport()
    closed: Counter[int] = Counter()
    possibly_closed: set[int] = set()
    acknowledged: set[int] = set()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    server = processes.serve(CONFIG.format(sync=SYNCS[0]))
    first = 0
    for number in range(1, kills + 1):
        end = first + (item_count - first) // (kills - number + 1)
        consumers = [Consumer(closed, possibly_closed, random.Random(rng.random())) for _ in range(2)]
        producer = Writer(b"later", lambda number: b"%d" % number, first, end, random.Random(rng.random()))
        workers = [producer, *consumers]
        start(server, workers)
        producer.wait(first + round((end - first) * rng.random()))  # kill the server during or after the puts
        time.sleep(0.2 + rng.random() * 0.6)  # time for items to expire, arrive and fail
        stop(workers, server)
        errors = [error for worker in workers for error in worker.errors]
        report.check(not errors, "no request failed before the kill", errors)
        acknowledged.update(range(first, producer.acknowledged))
        print(f"kill {number}: {len(acknowledged):,} put, {len(closed):,} closed")
        first = producer.sent
        server = processes.serve(CONFIG.format(sync=SYNCS[number % len(SYNCS)]))
    remaining = _drain(server)
    server.stop()
    lost = acknowledged - set(remaining) - possibly_closed
    report.check(not lost, f"{len(acknowledged):,} items were acknowledged, and none was lost", sorted(lost))
    times = Counter(remaining) + closed
    duplicates = sum(count > 1 for count in times.values())
    limit = kills * MOVES_PER_SLICE  # the moves that wait for a commit when a kill comes
    report.check(duplicates <= limit, f"{duplicates:,} items were duplicated; {kills} kills may duplicate {limit:,}")
    report.check(any(count for count in closed.values()), f"{len(closed):,} items were closed")
    return report.finish()


def _drain(server: Server) -> list[int]:
    """Return all remaining items, after those that expire or fail have moved."""
    remaining: list[int] = []
    with server.connect() as client:
        while client.stats().get("queue_later_items", "0") != "0":
            time.sleep(0.05)
        time.sleep(0.3)
        for queue in (b"jobs", b"dead", b"later"):
            while (data := client.get(queue)) is not None:
                remaining.append(int(data))
    return remaining


if __name__ == "__main__":
    sys.exit(command_line.run(torture, __doc__, items=20_000, kills=10))
