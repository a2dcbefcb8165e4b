"""Kills the server again and again while items expire from one queue into another, fail there and move on.

    python -m tests.torture.moves --seed 1 --items 20000 --kills 10

Numbered items are put to `later`, expire into `jobs` and are taken from there as open reads, which are closed, aborted
or abandoned by hanging up; what failed three times moves to `dead`. In the end each item whose put was answered has
been closed, or is in one of the queues. None is lost; only a kill may double one.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from typing import Final

from tests.server.running import Client, Processes, Server, set_request
from tests.torture import command_line
from tests.torture.kill_restart import GONE, Ledger

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
"""Every server that is started goes by another one."""


class Puts:
    """A thread that puts numbered items to `later`, as fast as they are answered."""

    def __init__(self, server: Server, first: int, end: int, dice: random.Random) -> None:
        self.sent = self.acknowledged = first
        self._server, self._end, self._dice = server, end, dice
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._server.connect() as client:
                while self.sent < self._end:
                    window = range(self.sent, min(self._end, self.sent + self._dice.randrange(1, 100)))
                    self.sent = window.stop
                    client.send(b"".join(set_request(b"later", b"%d" % number) for number in window))
                    for _ in window:
                        client.expect(b"STORED\r\n")
                        self.acknowledged += 1
        except GONE:
            pass


class Takes:
    """A thread that takes items from `jobs`, and closes, aborts or abandons them. `closed` counts by number."""

    def __init__(self, server: Server, closed: Counter[int], maybe_closed: set[int], dice: random.Random) -> None:
        self.is_over = threading.Event()
        self._server, self._closed, self._maybe_closed, self._dice = server, closed, maybe_closed, dice
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.is_over.is_set():
                with self._server.connect() as client:
                    while not self.is_over.is_set() and self._takes_one(client):
                        pass
        except GONE:
            pass

    def _takes_one(self, client: Client) -> bool:
        """False when it wants a new connection."""
        data = client.get(b"jobs/open")
        if data is None:
            time.sleep(0.005)
            return True
        what = self._dice.choices(("close", "abort", "hang up"), (6, 3, 1))[0]
        if what == "close":
            self._maybe_closed.add(int(data))
            client.ask(b"get jobs/close\r\n", b"END\r\n")
            self._closed[int(data)] += 1
        elif what == "abort":
            client.ask(b"get jobs/abort\r\n", b"END\r\n")
        return what != "hang up"


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put so many items over so many kills, and print the ledger. Returns how many checks failed."""
    dice = random.Random(seed)
    ledger = Ledger()
    closed: Counter[int] = Counter()
    maybe_closed: set[int] = set()
    acknowledged: set[int] = set()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    server = processes.serve(CONFIG.format(sync=SYNCS[0]))
    first = 0
    for kill in range(1, kills + 1):
        end = first + (item_count - first) // (kills - kill + 1)
        takes = [Takes(server, closed, maybe_closed, random.Random(dice.random())) for _ in range(2)]
        puts = Puts(server, first, end, random.Random(dice.random()))
        some = first + (end - first) * dice.random()  # or kill it in the midst of the puts
        while puts.acknowledged < some and puts.thread.is_alive():
            time.sleep(0.001)
        time.sleep(0.2 + dice.random() * 0.6)  # time for items to expire, arrive and fail
        for take in takes:
            take.is_over.set()
        server.kill()
        for thread in (puts.thread, *(take.thread for take in takes)):
            thread.join()
        acknowledged.update(range(first, puts.acknowledged))
        print(f"kill {kill}: {len(acknowledged):,} put, {len(closed):,} closed")
        first = puts.sent
        server = processes.serve(CONFIG.format(sync=SYNCS[kill % len(SYNCS)]))
    left = _drain(server)
    server.stop()
    lost = acknowledged - set(left) - maybe_closed
    ledger.check(not lost, f"of {len(acknowledged):,} items none is lost, {len(lost):,} are: {sorted(lost)[:10]}")
    times = Counter(left) + closed
    doubled = sum(count > 1 for count in times.values())
    at_most = kills * 2 * 1000
    ledger.check(doubled <= at_most, f"{doubled:,} came twice, which {kills} kills may have done to {at_most:,}")
    ledger.check(any(count for count in closed.values()), f"{len(closed):,} were closed")
    ledger.close()
    return ledger.failed


def _drain(server: Server) -> list[int]:
    """Take everything that is left, once all has moved that will."""
    left: list[int] = []
    with server.connect() as client:
        while client.stats().get("queue_later_items", "0") != "0":
            time.sleep(0.05)
        time.sleep(0.3)
        for queue in (b"jobs", b"dead", b"later"):
            while (data := client.get(queue)) is not None:
                left.append(int(data))
    return left


if __name__ == "__main__":
    description = "Kill the server while items move between queues; none may be lost."
    sys.exit(command_line.run(torture, description, items=20_000, kills=10))
