"""Kills the server repeatedly while clients put and get, and checks that no item is lost, duplicated or reordered.

    python -m tests.torture.kill_restart --seed 1 --items 100000 --kills 20

One client puts numbered items. Another takes them with plain gets, or as open reads that it closes, confirms or leaves
open when it disconnects. Only requests without a reply are uncertain after a kill. The queue must then hold the items
from `head` to `tail`, both within known bounds. Every item is compared byte for byte.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from tests.memcache_text import set_
from tests.server.running import Client, Processes, Server, eventually
from tests.torture import command_line
from tests.torture.check_report import CheckReport

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 100\n'
SMALL_LIMITS: Final = """[default]
maxMemorySize = "64KiB"
maxJournalSize = "512KiB"
defaultJournalSize = "128KiB"
minJournalCompactDelay = "none"
"""
"""Limits so small that journals are rotated, read behind, rewritten and packed all the time."""
QUEUE: Final = b"work"
POLL_S: Final = 0.001
CONNECTION_ERRORS: Final = (ConnectionError, AssertionError, OSError, ValueError, IndexError)
"""Errors that a client may see when the server is killed within a reply."""


class Items:
    """Numbered items. Each begins with its number. The sizes are mixed, from 8 bytes to a megabyte."""

    def __init__(self, seed: int, count: int) -> None:
        self._seed = seed
        self.count = count

    def __getitem__(self, number: int) -> bytes:
        rng = random.Random(f"{self._seed} {number}")
        size = rng.choices((0, 50, 1000, 60_000, 1 << 20), (10, 1000, 300, 15, 1))[0]
        rest = rng.randbytes(rng.randrange(size + 1))
        if rng.random() < 0.1:
            rest = b"\r\nEND\r\nset work 0 0 1\r\n" + rest
        return b"%08d" % number + rest


class Worker(ABC):
    """A client with a thread of its own. `errors` lists what it finds wrong before it is stopped."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.errors: list[str] = []

    def start(self, server: Server) -> None:
        """Start working with that server."""
        self._server = server
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop before the server is killed, or at the end."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._server.connect() as client:
                    while not self._stopping.is_set() and self.step(client):
                        pass
        except CONNECTION_ERRORS as error:
            if not self._stopping.is_set():
                self.errors.append(f"{type(self).__name__}: {type(error).__name__}: {error}")

    @abstractmethod
    def step(self, client: Client) -> bool:
        """Send some requests. Return False to reconnect."""


def start(server: Server, workers: Sequence[Worker]) -> None:
    """Start all workers with that server."""
    for worker in workers:
        worker.start(server)


def stop(workers: Sequence[Worker], server: Server | None = None) -> None:
    """Stop all workers, kill the server if there is one, and wait for the ends of the workers."""
    for worker in workers:
        worker.stop()
    if server is not None:
        server.kill()
    for worker in workers:
        worker.join()


class Writer(Worker):
    """Puts items in order, many at a time. The first `acknowledged` of the first `sent` items have replies."""

    def __init__(
        self, queue: bytes, item: Callable[[int], bytes], first: int, until: int, rng: random.Random
    ) -> None:
        """`item` returns the item of a number. The numbers from `first` to before `until` are put."""
        super().__init__(rng)
        self._queue, self._item, self._until = queue, item, until
        self.acknowledged = self.sent = first

    def step(self, client: Client) -> bool:
        """Put some items."""
        window = range(self.sent, min(self._until, self.sent + self.rng.randrange(1, 200)))
        self.sent = window.stop
        client.send(b"".join(set_(self._queue, self._item(number)) for number in window))
        for _ in window:
            client.expect(b"STORED\r\n")
            self.acknowledged += 1
        if not window:
            time.sleep(POLL_S)
        return True

    def wait(self, number: int) -> None:
        """Wait until the items before that number are acknowledged, or the thread has failed."""
        while self.acknowledged < number and self._thread.is_alive():
            time.sleep(POLL_S)


class Reader(Worker):
    """Takes items. Those before `finished` are removed, and those before `possibly_finished` may be."""

    def __init__(self, items: Items, head: int, rng: random.Random) -> None:
        super().__init__(rng)
        self._items = items
        self.finished = self.possibly_finished = head
        self.taken = 0
        self._has_abandoned = False

    def _has_no_open_reads(self) -> bool:
        with self._server.connect() as client:
            return client.stats().get("queue_work_open_transactions", "0") == "0"

    def step(self, client: Client) -> bool:
        """Take items. Return False to reconnect."""
        if self._has_abandoned:
            eventually(self._has_no_open_reads, "the open reads are put back")
            self._has_abandoned = False
        count = self.rng.randrange(1, 50)
        action = self.rng.choice(["plain", "plain", "close", "close", "confirm", "disconnect"])
        if action == "plain":
            self.possibly_finished = self.finished + count
            client.send(b"get work\r\n" * count)
            for _ in range(count):
                if self._next(client, self.finished):
                    self.finished += 1
            self.possibly_finished = self.finished
            return True
        client.send(b"get work/open\r\n" * count)
        opened = 0
        for _ in range(count):
            opened += self._next(client, self.finished + opened)
        if action == "disconnect":
            self._has_abandoned = True
            return False
        if opened:
            self.possibly_finished = self.finished + opened
            if action == "close":
                client.send(b"get work/close\r\n" * opened)
                for _ in range(opened):
                    client.expect(b"END\r\n")
                    self.finished += 1
            else:
                client.ask(b"confirm work %d\r\n" % opened, b"END\r\n")
                self.finished += opened
        self.possibly_finished = self.finished
        return True

    def _next(self, client: Client, expected: int) -> bool:
        """Read a reply, and check that its item is the expected one. Return False if there was no item."""
        line = client.line()
        if line == b"END\r\n":
            return False
        data = client.receive(int(line.split()[3]))
        client.expect(b"\r\nEND\r\n")
        self.taken += 1
        if data != self._items[expected]:
            self.errors.append(f"item {data[:8]!r} of {len(data)} bytes came instead of item {expected}")
        return True


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put and take that many items over that many kills. Print a report and return the number of failed checks."""
    rng = random.Random(seed)
    items = Items(seed, item_count)
    report = CheckReport()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    head = tail = 0
    server = processes.serve(CONFIG + SMALL_LIMITS)
    for number in range(1, kills + 1):
        is_last_round = number == kills
        # Only the last round may put all remaining items before its kill.
        goal = item_count if is_last_round else tail + (item_count - tail) // (kills - number + 1)
        writer = Writer(QUEUE, items.__getitem__, tail, item_count, random.Random(rng.random()))
        reader = Reader(items, head, random.Random(rng.random()))
        start(server, [writer, reader])
        writer.wait(goal)
        time.sleep(rng.random() * 0.02)
        stop([writer, reader], server)
        began = time.monotonic()
        server = processes.serve(CONFIG + (SMALL_LIMITS if number % 3 else ""))
        seconds = time.monotonic() - began
        print(
            f"kill {number}: {writer.acknowledged:,} acknowledged, {writer.sent - writer.acknowledged:,} unanswered; "
            f"{reader.finished:,} finished, {reader.possibly_finished - reader.finished:,} unanswered; "
            f"{reader.taken:,} delivered; restarted in {seconds:.2f} s"
        )
        errors = writer.errors + reader.errors
        report.check(not errors, f"the {reader.taken:,} items were delivered in order, byte for byte", errors)
        head, tail = _bounds(server, items, reader.finished)
        report.check(
            reader.finished <= head <= reader.possibly_finished,
            f"the head is item {head:,}, within {reader.finished:,} to {reader.possibly_finished:,}",
        )
        report.check(
            writer.acknowledged <= tail <= writer.sent,
            f"the tail is item {tail:,}, within {writer.acknowledged:,} to {writer.sent:,}",
        )
    writer = Writer(QUEUE, items.__getitem__, tail, item_count, random.Random(0))
    start(server, [writer])
    writer.wait(item_count)
    stop([writer])
    report.check(writer.acknowledged == item_count, "all items were put")
    _drain(server, items, head, report)
    server.stop()
    return report.finish()


def _bounds(server: Server, items: Items, if_empty: int) -> tuple[int, int]:
    """Return the number of the first item of the queue, and that after the last one."""
    with server.connect() as client:
        first = client.get(QUEUE + b"/peek")
        head = if_empty if first is None else int(first[:8])
        return head, head + int(client.stats().get("queue_work_items", "0"))


def _drain(server: Server, items: Items, head: int, report: CheckReport) -> None:
    """Take and check all remaining items."""
    errors = 0
    with server.connect() as client:
        for number in range(head, items.count):
            errors += client.get(QUEUE) != items[number]
        report.check(errors == 0, f"the last {items.count - head:,} items were delivered in order, byte for byte")
        report.check(client.get(QUEUE) is None, "the queue is empty")


if __name__ == "__main__":
    sys.exit(command_line.run(torture, __doc__, items=100_000, kills=20))
