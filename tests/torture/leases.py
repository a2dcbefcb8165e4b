"""Kills the server repeatedly while thrift clients put many items at a time and hold open reads with a timeout.

    python -m tests.torture.leases --seed 1 --items 100000 --kills 20

Some clients put numbered items into queues, including a fanout parent. Others open items with a timeout. They confirm
some of each reply, abort some, and let the others time out. At the end each acknowledged item must be present once,
unless its confirm was sent. No item with an acknowledged confirm may be present. No open read id may be used twice,
not even by different servers.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from kestrel.address import Address
from kestrel.client.connection import BlockingConnection
from kestrel.client.errors import ConnectionFailed
from kestrel.client.thrift import OpenRead, ThriftCalls
from tests.server.running import Processes, Server
from tests.torture import command_line
from tests.torture.check_report import CheckReport
from tests.torture.kill_restart import SMALL_LIMITS

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 100000\n'
QUEUES: Final = (b"work", b"more", b"parent+child")
TARGETS: Final = (b"work", b"more", b"parent")
TIMEOUT_MS: Final = 200
"""Timeout of open reads."""
BATCHES: Final = (1, 1, 10, 300, 2000)


class ItemLog:
    """Puts and reads of all clients, over all restarts. Items have numbers; an item of the parent is in the child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self.put_limit = 0
        """Limit of the numbers that may be put now."""
        self.stored: dict[int, bytes] = {}
        """The queue of each acknowledged item."""
        self.possibly_stored: dict[int, bytes] = {}
        self.confirmed: set[int] = set()
        self.possibly_confirmed: set[int] = set()
        self.delivered = 0
        self._ids: set[int] = set()
        self.errors: list[str] = []

    def next_numbers(self, count: int) -> range:
        """Return the numbers of the next items to put, fewer at the limit."""
        with self._lock:
            first = self._next
            self._next = min(first + count, self.put_limit)
            return range(first, self._next)

    def add_delivered(self, queue: bytes, reads: Iterable[OpenRead]) -> None:
        """Record and check reads that a client received."""
        with self._lock:
            for read in reads:
                number = number_of(read.data)
                self.delivered += 1
                if read.id in self._ids:
                    self.errors.append(f"open read id {read.id} was used twice")
                self._ids.add(read.id)
                if number in self.confirmed:
                    self.errors.append(f"item {number} was delivered after its confirm")
                if self.possibly_stored.get(number) != queue:
                    self.errors.append(f"item {number} was delivered from {queue!r}")


def item(number: int, size: int) -> bytes:
    """Return an item that begins with its number."""
    return b"%d:" % number + b"x" * size


def number_of(data: bytes) -> int:
    """Return the number of an item."""
    return int(data.partition(b":")[0])


class Worker:
    """A client with a thread of its own that works until the server is killed."""

    def __init__(self, address: Address, log: ItemLog, rng: random.Random) -> None:
        self._address, self._log, self._rng = address, log, rng
        self._calls = ThriftCalls()

    def run(self, step: Callable[[Worker, BlockingConnection], bool]) -> None:
        """Repeat a step, sometimes with a new connection, until it returns False."""
        try:
            is_working = True
            while is_working:
                connection = BlockingConnection.to(self._address, 10.0)
                while (is_working := step(self, connection)) and self._rng.random() < 0.95:
                    pass
                connection.close()
        except ConnectionFailed:
            pass  # the kill
        except Exception as error:
            self._log.errors.append(f"{type(error).__name__}: {error}")

    def put(self, connection: BlockingConnection) -> bool:
        """Put the next items. Return False at the end."""
        log, index = self._log, self._rng.randrange(len(TARGETS))
        numbers = log.next_numbers(self._rng.choice(BATCHES))
        log.possibly_stored.update(dict.fromkeys(numbers, QUEUES[index]))
        items = [item(number, self._rng.choice((0, 20, 500))) for number in numbers]
        stored = connection.ask(self._calls.put(TARGETS[index], items))
        log.stored.update(dict.fromkeys(numbers[:stored], QUEUES[index]))
        if stored != len(items):
            log.errors.append(f"{stored} of {len(items)} items were stored")
        return bool(numbers)

    def take(self, connection: BlockingConnection) -> bool:
        """Open items; confirm some, abort some, and let the others time out."""
        log, rng, queue = self._log, self._rng, self._rng.choice(QUEUES)
        reads = connection.ask(self._calls.get(queue, rng.choice(BATCHES), rng.choice((0, 20)), TIMEOUT_MS))
        log.add_delivered(queue, reads)
        first, second = sorted(rng.randrange(len(reads) + 1) for _ in range(2))
        finished = [number_of(read.data) for read in reads[:first]]
        log.possibly_confirmed.update(finished)
        if connection.ask(self._calls.confirm(queue, [read.id for read in reads[:first]])) == first:
            log.confirmed.update(finished)  # a smaller count does not tell which reads had timed out
        connection.ask(self._calls.abort(queue, [read.id for read in reads[first:second]]))
        return True


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put that many items over that many kills. Print a report and return the number of failed checks."""
    rng = random.Random(seed)
    log, report = ItemLog(), CheckReport()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    for kill in range(1, kills + 1):
        server = _serve(processes)
        address = Address("127.0.0.1", server.port_of("thrift"))
        workers = [Worker(address, log, random.Random(rng.random())) for _ in range(5)]
        steps = [Worker.put, Worker.put, Worker.take, Worker.take, Worker.take]
        threads = [
            threading.Thread(target=worker.run, args=(step,), daemon=True)
            for worker, step in zip(workers, steps, strict=True)
        ]
        log.put_limit = item_count * kill // kills
        for thread in threads:
            thread.start()
        time.sleep(rng.random() * 2 * TIMEOUT_MS / 1000)  # during the puts or after them
        server.kill()
        for thread in threads:
            thread.join()
        counts = f"{len(log.stored):,} put, {len(log.confirmed):,} confirmed, {log.delivered:,} delivered"
        print(f"kill {kill}: {counts}")
        rule = "no item was delivered after its confirm, and no open read id was used twice"
        report.check(not log.errors, rule, log.errors)
        log.errors.clear()
    _check_remaining(_serve(processes), log, report)
    return report.finish()


def _serve(processes: Processes) -> Server:
    server = processes.serve(CONFIG + SMALL_LIMITS)
    with server.connect() as client:
        client.get(b"parent+child/peek")  # create the child before the first put to its parent
    return server


def _check_remaining(server: Server, log: ItemLog, report: CheckReport) -> None:
    """Take all remaining items, and check that none is missing, duplicated or confirmed."""
    connection = BlockingConnection.to(Address("127.0.0.1", server.port_of("thrift")), 10.0)
    calls = ThriftCalls()
    remaining: Counter[int] = Counter()
    for queue in QUEUES:
        while reads := connection.ask(calls.get(queue, 5000)):
            remaining.update(number_of(read.data) for read in reads)
    server.stop()
    lost = [number for number in log.stored if number not in remaining and number not in log.possibly_confirmed]
    report.check(not lost, f"{len(log.stored):,} items were acknowledged, and none was lost", lost)
    back = [number for number in remaining if number in log.confirmed]
    report.check(not back, f"{len(log.confirmed):,} items were confirmed, and none of them remains", back)
    twice = [number for number, count in remaining.items() if count > 1]
    report.check(not twice, f"{len(remaining):,} items remain, each once", twice)


if __name__ == "__main__":
    sys.exit(command_line.run(torture, __doc__, items=100_000, kills=20))
