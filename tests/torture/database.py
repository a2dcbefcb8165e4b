"""Kills the server and its database in turn while clients put and get, and checks that no item is lost or reordered.

    python -m tests.torture.database --seed 1 --items 20000 --kills 20

Each of two queues has a client that puts numbered items once, and one that opens items and confirms most of them. The
server continues while its database is down: it answers requests later, or refuses them. Every acknowledged item must be
delivered, unless its confirm was sent. No refused item and no confirmed item may be delivered.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Final

from kestrel.testing.postgres import PrivateServer
from tests.memcache_text import set_
from tests.server.running import Client, Processes, Server
from tests.torture import command_line
from tests.torture.check_report import CheckReport
from tests.torture.kill_restart import SMALL_LIMITS, Items, Worker, start, stop

CONFIG: Final = f'maxOpenTransactions = 100\n{SMALL_LIMITS}'
QUEUES: Final = (b"work", b"mail")
PAUSE_S: Final = 0.1
"""Pause of a client whose request was refused, or that has nothing to do."""
MAX_WAIT_S: Final = 60.0
"""Maximum time until the clients have sent some items."""


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
        """Items whose confirm was sent, with or without a reply."""
        self.newest = -1
        """Highest number that was delivered."""
        self.returned: set[int] = set()
        """Delivered items whose connection ended before a reply to their confirm."""
        self.redelivered = 0
        """Number of repeated deliveries, each of a returned item."""
        self.last_stored_s = time.monotonic()
        self.longest_pause_s = 0.0
        """Longest time between two acknowledged puts."""
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
        if number in self.delivered:
            self.redelivered += 1
            if number not in self.returned:
                self.errors.append(f"item {number} was delivered twice without being returned")
        elif number < self.newest:
            self.errors.append(f"item {number} was delivered after item {self.newest}")
        self.delivered.add(number)
        self.newest = max(self.newest, number)
        return number

    def add_stored(self, number: int) -> None:
        """Record an acknowledged put, and the longest time without one."""
        now_s = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now_s - self.last_stored_s)
        self.last_stored_s = now_s
        self.stored.add(number)

    def watch_pauses(self) -> None:
        """Measure `longest_pause_s` from now."""
        self.last_stored_s = time.monotonic()
        self.longest_pause_s = 0.0

    def lost(self) -> set[int]:
        """Return the stored items that were neither delivered nor confirmed."""
        return self.stored - self.delivered - self.confirmed - self.possibly_confirmed


class QueueWorker(Worker):
    """A client of one queue, which has the list of errors."""

    def __init__(self, queue: TrackedQueue, rng: random.Random) -> None:
        super().__init__(rng)
        self.queue = queue
        self.errors = queue.errors


class Writer(QueueWorker):
    """Puts items in order, many at a time."""

    def step(self, client: Client) -> bool:
        """Put some items."""
        queue = self.queue
        # While the database is down, try one item at a time.
        most = 1 if queue.sent - 1 in queue.refused else self.rng.randrange(1, 60)
        window = range(queue.sent, max(queue.sent, min(queue.put_limit, queue.sent + most)))
        queue.sent = window.stop
        client.send(b"".join(set_(queue.name, queue.items[number]) for number in window))
        for number in window:
            reply = client.line()
            if reply == b"STORED\r\n":
                queue.add_stored(number)
            elif reply.startswith(b"SERVER_ERROR"):
                queue.refused.add(number)
            else:
                raise ConnectionError(reply)
        if not window or window[-1] in queue.refused:
            time.sleep(PAUSE_S)
        return True


class Reader(QueueWorker):
    """Opens items and confirms most of them."""

    def __init__(self, queue: TrackedQueue, rng: random.Random) -> None:
        super().__init__(queue, rng)
        self._opened: list[int] = []
        """Items that this connection has opened and not confirmed."""

    def step(self, client: Client) -> bool:
        """Open some items, and confirm them or disconnect."""
        queue, count = self.queue, self.rng.randrange(1, 40)
        queue.returned.update(self._opened)  # by a connection that has ended
        self._opened = []
        client.send(b"get %b/open\r\n" % queue.name * count)
        opened = [number for number in (self._next(client) for _ in range(count)) if number is not None]
        if len(opened) < count:
            time.sleep(PAUSE_S)
        if self.rng.random() < 0.1:
            queue.returned.update(opened)
            return False  # the open reads return to the head
        if opened:
            queue.possibly_confirmed.update(opened)
            client.send(b"confirm %b %d\r\n" % (queue.name, len(opened)))
            reply = client.line()
            if reply == b"END\r\n":
                queue.confirmed.update(opened)
                self._opened = []
            elif not reply:
                raise ConnectionError
            else:
                queue.possibly_confirmed.difference_update(opened)
                queue.errors.append(f"reply to a confirm: {reply!r}")
        return True

    def _next(self, client: Client) -> int | None:
        line = client.line()
        if not line:
            raise ConnectionError
        if line == b"END\r\n" or line.startswith(b"SERVER_ERROR"):
            return None
        data = client.receive(int(line.split()[3]))
        client.expect(b"\r\nEND\r\n")
        number = self.queue.add_delivered(data)
        self._opened.append(number)
        return number


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put and take that many items over that many kills. Print a report and return the number of failed checks."""
    rng = random.Random(seed)
    report = CheckReport()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    workers = new_load(seed, item_count)
    queues = queues_of(workers)
    with PrivateServer(is_synced=True) as database:
        arguments = ("--storage", f"postgres:{database.conninfo}")
        server = processes.serve(CONFIG, *arguments)
        start(server, workers)
        for kill in range(1, kills + 1):
            wait_until_sent(queues, kill / kills)
            time.sleep(rng.random() * 0.05)
            began = time.monotonic()
            if kill % 2:
                victim = "server"
                stop(workers, server)
                server = processes.serve(CONFIG, *arguments)
                start(server, workers)
            else:
                victim = "database"
                database.kill()
                time.sleep(rng.random() * 0.3)
                database.start()
            print(f"kill {kill} ({victim}): restarted in {time.monotonic() - began:.2f} s; {totals(queues)}")
            errors = [each for queue in queues for each in queue.errors]
            if errors:
                report.check(False, "each delivered item was allowed, in order and equal byte for byte", errors)
                break
        wait_until_sent(queues, 1.0)
        finish_load(workers, server, report)
        server.stop()
    return report.finish()


def new_load(seed: int, item_count: int) -> list[Writer | Reader]:
    """Return a writer and a reader for each queue."""
    rng = random.Random(seed)
    queues = [TrackedQueue(name, Items(seed + number, item_count // len(QUEUES))) for number, name in enumerate(QUEUES)]
    return [kind(queue, random.Random(rng.random())) for queue in queues for kind in (Writer, Reader)]


def queues_of(workers: list[Writer | Reader]) -> list[TrackedQueue]:
    """Return the queues of the workers, each once."""
    return list(dict.fromkeys(worker.queue for worker in workers))


def finish_load(workers: list[Writer | Reader], server: Server, report: CheckReport) -> None:
    """Stop the workers, take all remaining items, and check each queue."""
    stop(workers)
    for queue in queues_of(workers):
        with server.connect() as client:
            while (data := client.get(queue.name)) is not None:
                queue.confirmed.add(queue.add_delivered(data))
        name = queue.name.decode()
        delivered = f"all {len(queue.delivered):,} items were correct and in order, {queue.redelivered:,} redelivered"
        report.check(not queue.errors, f"{name}: {delivered}", queue.errors)
        report.check(not queue.lost(), f"{name}: none of {len(queue.stored):,} acknowledged items was lost")


def wait_until_sent(queues: list[TrackedQueue], fraction: float) -> None:
    """Wait until the clients have sent that fraction of all items."""
    deadline_s = time.monotonic() + MAX_WAIT_S
    for queue in queues:
        queue.put_limit = round(queue.items.count * fraction)
    while any(queue.sent < queue.put_limit and not queue.errors for queue in queues):
        assert time.monotonic() < deadline_s, "the clients make no progress"
        time.sleep(0.001)


def totals(queues: list[TrackedQueue]) -> str:
    """Return the numbers of stored, refused and confirmed items."""
    stored, refused, confirmed = (sum(len(each) for each in sets) for sets in zip(
        *((queue.stored, queue.refused, queue.confirmed) for queue in queues), strict=True
    ))
    return f"{stored:,} stored, {refused:,} refused, {confirmed:,} confirmed"


if __name__ == "__main__":
    sys.exit(command_line.run(torture, __doc__, items=20_000, kills=20, storage=None))
