"""Kills the server repeatedly while clients put and get, and checks that no item is lost, repeated or reordered.

    python -m tests.torture.kill_restart --seed 1 --items 100000 --kills 20

Each of two queues has a client that puts numbered items, and one that takes them with plain gets, or as open reads that
it closes, confirms or leaves open when it disconnects. Only requests without a reply are uncertain after a kill. Every
acknowledged item must be delivered, unless its get or confirm was sent without a reply. No refused item and no
confirmed item may be delivered. Every item is compared byte for byte.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import Final, Protocol

from tests.memcache_text import set_
from tests.server.running import Client, Processes, Server
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
QUEUES: Final = (b"work", b"mail")
CONNECTION_ERRORS: Final = (ConnectionError, AssertionError, OSError, ValueError, IndexError)
"""Errors that a client may see when the server is killed within a reply."""
PAUSE_S: Final = 0.1
"""Pause of a client whose request was refused, or that has nothing to do."""
MAX_WAIT_S: Final = 60.0
"""Maximum time for a reply while a database is down."""


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


class TrackedQueue:
    """The items of one queue, with the replies that clients received."""

    def __init__(self, name: bytes, items: Items) -> None:
        self.name = name
        self.items = items
        self.sent = 0
        self.put_limit = 0
        """Limit of the numbers that may be put now."""
        self.stored: set[int] = set()
        self.refused: set[int] = set()
        self.delivered: set[int] = set()
        self.confirmed: set[int] = set()
        self.possibly_confirmed: set[int] = set()
        """Items whose confirm was sent, or that a plain get may have taken, with or without a reply."""
        self.newest = -1
        """Highest number that was delivered."""
        self.errors: list[str] = []

    def add_delivered(self, data: bytes) -> int:
        """Record and check a delivery. Return the number of the item."""
        number = int(data[:8])
        if data != self.items[number]:
            self.errors.append(f"item {number} of {len(data)} bytes differs from what was put")
        if number in self.confirmed:
            self.errors.append(f"item {number} was delivered after its confirm")
        if number in self.refused:
            self.errors.append(f"item {number} was refused, but delivered")
        if number not in self.delivered and number < self.newest:
            self.errors.append(f"item {number} was delivered after item {self.newest}")
        self.delivered.add(number)
        self.newest = max(self.newest, number)
        return number

    def add_unanswered_gets(self, count: int) -> None:
        """Record plain gets without a reply, which may have taken the items at the head."""
        for number in range(self.sent):
            if count == 0:
                break
            if number not in self.confirmed and number not in self.refused:
                self.possibly_confirmed.add(number)
                count -= number in self.stored

    def lost(self) -> set[int]:
        """Return the stored items that were neither delivered nor confirmed."""
        return self.stored - self.delivered - self.confirmed - self.possibly_confirmed


class Worker(ABC):
    """A client with a thread of its own, which reconnects when a step asks for it."""

    def __init__(self, queue: TrackedQueue, rng: random.Random) -> None:
        self.queue = queue
        self.rng = rng

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
                    client.socket.settimeout(MAX_WAIT_S)
                    while not self._stopping.is_set() and self.step(client):
                        pass
        except CONNECTION_ERRORS as error:
            if not self._stopping.is_set():
                self.queue.errors.append(f"{type(self).__name__}: {type(error).__name__}: {error}")

    @abstractmethod
    def step(self, client: Client) -> bool:
        """Send some requests. Return False to reconnect."""


class Writer(Worker):
    """Puts items in order, many at a time."""

    def step(self, client: Client) -> bool:
        """Put some items."""
        queue = self.queue
        window = range(queue.sent, min(queue.put_limit, queue.sent + self.rng.randrange(1, 60)))
        queue.sent = window.stop
        client.send(b"".join(set_(queue.name, queue.items[number]) for number in window))
        for number in window:
            reply = client.line()
            if reply == b"STORED\r\n":
                queue.stored.add(number)
            elif reply.startswith(b"SERVER_ERROR"):
                queue.refused.add(number)
            else:
                raise ConnectionError(reply)
        if not window or window[-1] in queue.refused:
            time.sleep(PAUSE_S)
        return True


class Reader(Worker):
    """Takes items with plain gets, or opens them and confirms most of them."""

    def step(self, client: Client) -> bool:
        """Take some items, or open some and close them, confirm them or disconnect."""
        queue, count = self.queue, self.rng.randrange(1, 40)
        action = self.rng.choice(("plain", "plain", "close", "close", "confirm", "disconnect"))
        if action == "plain":
            return self._take(client, count)
        client.send(b"get %b/open\r\n" % queue.name * count)
        opened = [number for number in (self._next(client) for _ in range(count)) if number is not None]
        if len(opened) < count:
            time.sleep(PAUSE_S)
        if action == "disconnect":
            return False  # the open reads return to the head
        queue.possibly_confirmed.update(opened)
        if action == "close":
            client.send(b"get %b/close\r\n" % queue.name * len(opened))
            for number in opened:
                client.expect(b"END\r\n")
                queue.confirmed.add(number)
        elif opened:
            client.ask(b"confirm %b %d\r\n" % (queue.name, len(opened)), b"END\r\n")
            queue.confirmed.update(opened)
        return True

    def _take(self, client: Client, count: int) -> bool:
        answered = 0
        try:
            client.send(b"get %b\r\n" % self.queue.name * count)
            for _ in range(count):
                number = self._next(client)
                answered += 1
                if number is not None:
                    self.queue.confirmed.add(number)
        except CONNECTION_ERRORS:
            self.queue.add_unanswered_gets(count - answered)
            raise
        return True

    def _next(self, client: Client) -> int | None:
        line = client.line()
        if not line:
            raise ConnectionError
        if line == b"END\r\n" or line.startswith(b"SERVER_ERROR"):
            return None
        data = client.receive(int(line.split()[3]))
        client.expect(b"\r\nEND\r\n")
        return self.queue.add_delivered(data)


class Victim(Protocol):
    """A database that is killed in turn with the server."""

    def kill(self) -> None:
        """Kill it."""

    def start(self) -> None:
        """Start it again."""


def torture(processes: Processes, *, seed: int, item_count: int, kills: int, database: Victim | None = None) -> int:
    """Put and take that many items over that many kills. Print a report and return the number of failed checks."""
    rng = random.Random(seed)
    report = CheckReport()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    queues = [TrackedQueue(name, Items(seed + number, item_count // len(QUEUES))) for number, name in enumerate(QUEUES)]
    workers: list[Writer | Reader] = [
        kind(queue, random.Random(rng.random())) for queue in queues for kind in (Writer, Reader)
    ]
    server = processes.serve(CONFIG + SMALL_LIMITS)
    _start(workers, server)
    for kill in range(1, kills + 1):
        _wait_until_sent(queues, kill / kills)
        time.sleep(rng.random() * 0.05)
        began = time.monotonic()
        if database is not None and kill % 2 == 0:
            database.kill()
            time.sleep(rng.random() * 0.3)
            database.start()
        else:
            _stop(workers, server)
            server = processes.serve(CONFIG + (SMALL_LIMITS if kill % 3 else ""))
            _start(workers, server)
        print(f"kill {kill}: restarted in {time.monotonic() - began:.2f} s; {_totals(queues)}")
        errors = [each for queue in queues for each in queue.errors]
        report.check(not errors, "each delivered item was allowed, in order and equal byte for byte", errors)
        if errors:
            break
    _wait_until_sent(queues, 1.0)
    _stop(workers)
    for queue in queues:
        with server.connect() as client:
            while (data := client.get(queue.name)) is not None:
                queue.confirmed.add(queue.add_delivered(data))
        name = queue.name.decode()
        report.check(not queue.errors, f"{name}: all {len(queue.delivered):,} items were correct and in order")
        report.check(not queue.lost(), f"{name}: none of {len(queue.stored):,} acknowledged items was lost")
    server.stop()
    return report.finish()


def _start(workers: list[Writer | Reader], server: Server) -> None:
    for worker in workers:
        worker.start(server)


def _stop(workers: list[Writer | Reader], killed: Server | None = None) -> None:
    """Stop the clients. If they use a server that is to be killed, kill it while they work."""
    for worker in workers:
        worker.stop()
    if killed is not None:
        killed.kill()
    for worker in workers:
        worker.join()


def _wait_until_sent(queues: list[TrackedQueue], fraction: float) -> None:
    """Wait until the clients have sent that fraction of all items."""
    deadline_s = time.monotonic() + MAX_WAIT_S
    for queue in queues:
        queue.put_limit = round(queue.items.count * fraction)
    while any(queue.sent < queue.put_limit and not queue.errors for queue in queues):
        assert time.monotonic() < deadline_s, "the clients make no progress"
        time.sleep(0.001)


def _totals(queues: list[TrackedQueue]) -> str:
    stored = sum(len(queue.stored) for queue in queues)
    refused = sum(len(queue.refused) for queue in queues)
    confirmed = sum(len(queue.confirmed) for queue in queues)
    return f"{stored:,} stored, {refused:,} refused, {confirmed:,} confirmed"


if __name__ == "__main__":
    sys.exit(command_line.run(torture, __doc__, items=100_000, kills=20))
