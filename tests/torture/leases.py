"""Kills the server again and again while thrift clients put many items at a time, hold them by number, and leave.

    python -m tests.torture.leases --seed 1 --items 100000 --kills 20

Some clients put numbered items into queues, a fanout parent among them. Others take them with auto-abort, and of each
reply confirm some, abort some, and forget the rest, which have to come back by themselves. At the end every item whose
put was answered is there once, unless its confirm was sent; none whose confirm was answered is; and no number was ever
given out twice, not even by servers started anew.
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
from tests.torture.kill_restart import SMALL, Ledger

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 100000\n'
QUEUES: Final = (b"work", b"more", b"parent+child")
TARGETS: Final = (b"work", b"more", b"parent")
HELD_MS: Final = 200
"""How long an item that was forgotten is away."""
BATCHES: Final = (1, 1, 10, 300, 2000)


class Books:
    """What all clients did, of all servers so far. An item is its number, and one put to the parent is the child's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self.until = 0
        """No items of this number and later are put yet."""
        self.stored: dict[int, bytes] = {}
        """Acknowledged, and the queue where it is."""
        self.maybe_stored: dict[int, bytes] = {}
        self.confirmed: set[int] = set()
        self.maybe_confirmed: set[int] = set()
        self.seen = 0
        self._ids: set[int] = set()
        self.wrong: list[str] = []

    def numbers(self, count: int) -> range:
        """The next numbers to put; fewer at the end, and then none."""
        with self._lock:
            first = self._next
            self._next = min(first + count, self.until)
            return range(first, self._next)

    def taken(self, queue: bytes, reads: Iterable[OpenRead]) -> None:
        """A client was given these."""
        with self._lock:
            for read in reads:
                number = number_of(read.data)
                self.seen += 1
                if read.id in self._ids:
                    self.wrong.append(f"the id {read.id} came twice")
                self._ids.add(read.id)
                if number in self.confirmed:
                    self.wrong.append(f"item {number} was confirmed, and came again")
                if self.maybe_stored.get(number) != queue:
                    self.wrong.append(f"item {number} came from {queue!r}")


def item(number: int, size: int) -> bytes:
    """An item that begins with its number."""
    return b"%d:" % number + b"x" * size


def number_of(data: bytes) -> int:
    """The number that the item begins with."""
    return int(data.partition(b":")[0])


class Worker:
    """A client with a thread of its own, until the server is killed."""

    def __init__(self, address: Address, books: Books, dice: random.Random) -> None:
        self._address, self._books, self._dice = address, books, dice
        self._calls = ThriftCalls()

    def run(self, step: Callable[[Worker, BlockingConnection], bool]) -> None:
        """Do that again and again, each time perhaps with a new connection, until it says that it is over."""
        try:
            goes_on = True
            while goes_on:
                connection = BlockingConnection.to(self._address, 10.0)
                while (goes_on := step(self, connection)) and self._dice.random() < 0.95:
                    pass
                connection.close()
        except ConnectionFailed:
            pass  # the kill
        except Exception as error:
            self._books.wrong.append(f"{type(error).__name__}: {error}")

    def put(self, connection: BlockingConnection) -> bool:
        """Put the next items."""
        books, place = self._books, self._dice.randrange(len(TARGETS))
        numbers = books.numbers(self._dice.choice(BATCHES))
        books.maybe_stored.update(dict.fromkeys(numbers, QUEUES[place]))
        items = [item(number, self._dice.choice((0, 20, 500))) for number in numbers]
        stored = connection.ask(self._calls.put(TARGETS[place], items))
        books.stored.update(dict.fromkeys(numbers[:stored], QUEUES[place]))
        if stored != len(items):
            books.wrong.append(f"{stored} of {len(items)} went in")
        return bool(numbers)

    def take(self, connection: BlockingConnection) -> bool:
        """Hold some items; confirm a part, abort a part, forget the rest."""
        books, dice, queue = self._books, self._dice, self._dice.choice(QUEUES)
        reads = connection.ask(self._calls.get(queue, dice.choice(BATCHES), dice.choice((0, 20)), HELD_MS))
        books.taken(queue, reads)
        first, second = sorted(dice.randrange(len(reads) + 1) for _ in range(2))
        finished = [number_of(read.data) for read in reads[:first]]
        books.maybe_confirmed.update(finished)
        if connection.ask(self._calls.confirm(queue, [read.id for read in reads[:first]])) == first:
            books.confirmed.update(finished)  # else some had gone back by themselves: who knows which
        connection.ask(self._calls.abort(queue, [read.id for read in reads[first:second]]))
        return True


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put so many items over so many kills, and print the ledger. Returns how many checks failed."""
    dice = random.Random(seed)
    books, ledger = Books(), Ledger()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    for kill in range(1, kills + 1):
        server = _serve(processes)
        address = Address("127.0.0.1", server.port_of("thrift"))
        workers = [Worker(address, books, random.Random(dice.random())) for _ in range(5)]
        steps = [Worker.put, Worker.put, Worker.take, Worker.take, Worker.take]
        threads = [
            threading.Thread(target=worker.run, args=(step,), daemon=True)
            for worker, step in zip(workers, steps, strict=True)
        ]
        books.until = item_count * kill // kills
        for thread in threads:
            thread.start()
        time.sleep(dice.random() * 2 * HELD_MS / 1000)  # in the midst of the puts, or behind them
        server.kill()
        for thread in threads:
            thread.join()
        print(f"kill {kill}: {len(books.stored):,} put, {len(books.confirmed):,} confirmed, {books.seen:,} seen")
        for wrong in books.wrong[:5]:
            print(f"          {wrong}")
        ledger.check(not books.wrong, "nothing that was confirmed came again, and no id twice")
        books.wrong.clear()
    _count_what_is_left(_serve(processes), books, ledger)
    ledger.close()
    return ledger.failed


def _serve(processes: Processes) -> Server:
    server = processes.serve(CONFIG + SMALL)
    with server.connect() as client:
        client.get(b"parent+child/peek")  # the child is there from the beginning
    return server


def _count_what_is_left(server: Server, books: Books, ledger: Ledger) -> None:
    """Take everything: nothing missing, nothing twice, nothing that was confirmed."""
    connection = BlockingConnection.to(Address("127.0.0.1", server.port_of("thrift")), 10.0)
    calls = ThriftCalls()
    left: Counter[int] = Counter()
    for queue in QUEUES:
        while reads := connection.ask(calls.get(queue, 5000)):
            left.update(number_of(read.data) for read in reads)
    server.stop()
    lost = [number for number in books.stored if number not in left and number not in books.maybe_confirmed]
    ledger.check(not lost, f"{len(books.stored):,} items were acknowledged, and none is lost {lost[:5]}")
    back = [number for number in left if number in books.confirmed]
    ledger.check(not back, f"{len(books.confirmed):,} were confirmed, and none came back {back[:5]}")
    twice = [number for number, times in left.items() if times > 1]
    ledger.check(not twice, f"{len(left):,} are there, each of them once {twice[:5]}")


if __name__ == "__main__":
    sys.exit(command_line.run(torture, "Kill a server of thrift clients: none is lost.", items=100_000, kills=20))
