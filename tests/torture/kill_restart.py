"""Kills the server again and again while clients put and get, and checks that nothing is lost, doubled or out of order.

    python -m tests.torture.kill_restart --seed 1 --items 100000 --kills 20

One client puts numbered items, one takes them: plain, or as open reads that it closes, or abandons by hanging up.
At a kill, what was not answered yet is in doubt, and nothing else: the queue then holds the items from `head` to
`tail`, both within known bounds. Every item that arrives is compared byte for byte.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import Final

from tests.server.running import Client, Processes, Server, eventually, set_request
from tests.torture import command_line

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 100\n'
SMALL: Final = """[default]
maxMemorySize = "64KiB"
maxJournalSize = "512KiB"
defaultJournalSize = "128KiB"
minJournalCompactDelay = "none"
"""
"""So little that journals are rotated, read behind, rewritten and packed all the time."""
QUEUE: Final = b"work"
GONE: Final = (ConnectionError, AssertionError, OSError, ValueError, IndexError)
"""How a client sees that the server was killed: at any byte of a reply."""


class Ledger:
    """What was checked, printed line by line."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def check(self, holds: bool, what: str) -> None:
        """One check; a failed one is printed with a mark."""
        self.passed += holds
        self.failed += not holds
        print(("  ok      " if holds else "  FAILED  ") + what)

    def close(self) -> None:
        """The last line."""
        print(f"{self.passed} passed, {self.failed} failed")


class Items:
    """The items by number. Each begins with its number; sizes are mixed, from 8 bytes to a megabyte."""

    def __init__(self, seed: int, count: int) -> None:
        self._seed = seed
        self.count = count

    def __getitem__(self, number: int) -> bytes:
        dice = random.Random(f"{self._seed} {number}")
        size = dice.choices((0, 50, 1000, 60_000, 1 << 20), (10, 1000, 300, 15, 1))[0]
        rest = dice.randbytes(dice.randrange(size + 1))
        if dice.random() < 0.1:
            rest = b"\r\nEND\r\nset work 0 0 1\r\n" + rest
        return b"%08d" % number + rest


class Worker(ABC):
    """A client with a thread of its own. What goes wrong before the kill stands in `wrong`."""

    def __init__(self, server: Server, items: Items, dice: random.Random) -> None:
        self.wrong: list[str] = []
        self.is_over = threading.Event()
        """Set just before the kill."""
        self._server, self._items, self._dice = server, items, dice

    def run(self) -> None:
        """Work to the end."""
        try:
            self._work()
        except GONE as error:
            if not self.is_over.is_set():
                self.wrong.append(f"{type(self).__name__}: {type(error).__name__}: {error}")

    @abstractmethod
    def _work(self) -> None:
        """Whatever that worker does, until it is over."""


class Writer(Worker):
    """Puts items in their order, in windows. `acknowledged` of `sent` have been answered."""

    def __init__(self, server: Server, items: Items, tail: int, dice: random.Random) -> None:
        super().__init__(server, items, dice)
        self.acknowledged = self.sent = tail

    def _work(self) -> None:
        until = self._items.count
        with self._server.connect() as client:
            while self.acknowledged < until:
                window = range(self.sent, min(until, self.sent + self._dice.randrange(1, 200)))
                requests = b"".join(set_request(QUEUE, self._items[number]) for number in window)
                self.sent = window.stop
                client.send(requests)
                for _ in window:
                    client.expect(b"STORED\r\n")
                    self.acknowledged += 1


class Reader(Worker):
    """Takes items from the head. Those before `finished` are gone for good; those before `maybe_finished` may be."""

    def __init__(self, server: Server, items: Items, head: int, dice: random.Random) -> None:
        super().__init__(server, items, dice)
        self.finished = self.maybe_finished = head
        self.taken = 0

    def _work(self) -> None:
        while not self.is_over.is_set():
            with self._server.connect() as client:
                while not self.is_over.is_set() and self._takes_some(client):
                    pass
            eventually(self._has_no_open_reads, "the open reads are back")

    def _has_no_open_reads(self) -> bool:
        with self._server.connect() as client:
            return client.stats().get("queue_work_open_transactions", "0") == "0"

    def _takes_some(self, client: Client) -> bool:
        """False when it wants a new connection."""
        count = self._dice.randrange(1, 50)
        what = self._dice.choice(["plain", "plain", "close", "close", "confirm", "hang up"])
        if what == "plain":
            self.maybe_finished = self.finished + count
            client.send(b"get work\r\n" * count)
            for _ in range(count):
                if self._next(client, self.finished):
                    self.finished += 1
            self.maybe_finished = self.finished
            return True
        client.send(b"get work/open\r\n" * count)
        opened = 0
        for _ in range(count):
            opened += self._next(client, self.finished + opened)
        if what == "hang up":
            return False
        if opened:
            self.maybe_finished = self.finished + opened
            if what == "close":
                client.send(b"get work/close\r\n" * opened)
                for _ in range(opened):
                    client.expect(b"END\r\n")
                    self.finished += 1
            else:
                client.ask(b"confirm work %d\r\n" % opened, b"END\r\n")
                self.finished += opened
        self.maybe_finished = self.finished
        return True

    def _next(self, client: Client, expected: int) -> bool:
        """Whether the next reply is an item, which must be the expected one."""
        line = client.line()
        if line == b"END\r\n":
            return False
        data = client.receive(int(line.split()[3]))
        client.expect(b"\r\nEND\r\n")
        self.taken += 1
        if data != self._items[expected]:
            self.wrong.append(f"item {data[:8]!r} of {len(data)} bytes came in place of item {expected}")
        return True


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put and take so many items over so many kills, and print the ledger. Returns how many checks failed."""
    dice = random.Random(seed)
    items = Items(seed, item_count)
    ledger = Ledger()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    head = tail = 0
    server = processes.serve(CONFIG + SMALL)
    for kill in range(1, kills + 1):
        is_last_round = kill == kills
        # The last round may come to the end of the items before its kill; the others are to be killed in the middle.
        goal = item_count if is_last_round else tail + (item_count - tail) // (kills - kill + 1)
        writer = Writer(server, items, tail, random.Random(dice.random()))
        reader = Reader(server, items, head, random.Random(dice.random()))
        threads = [threading.Thread(target=each.run, daemon=True) for each in (writer, reader)]
        for thread in threads:
            thread.start()
        while writer.acknowledged < goal and threads[0].is_alive():
            time.sleep(0.001)
        time.sleep(dice.random() * 0.02)
        writer.is_over.set()
        reader.is_over.set()
        server.kill()
        for thread in threads:
            thread.join()
        began = time.monotonic()
        server = processes.serve(CONFIG + (SMALL if kill % 3 else ""))
        seconds = time.monotonic() - began
        print(
            f"kill {kill}: {writer.acknowledged:,} put and {writer.sent - writer.acknowledged:,} in doubt, "
            f"{reader.finished:,} gone and {reader.maybe_finished - reader.finished:,} in doubt, "
            f"{reader.taken:,} seen; again there after {seconds:.2f} s"
        )
        wrong = writer.wrong + reader.wrong
        for each in wrong[:5]:
            print(f"          {each}")
        ledger.check(not wrong, f"each of {reader.taken:,} items seen was the next one, byte for byte")
        head, tail = _bounds(server, items, reader.finished)
        ledger.check(
            reader.finished <= head <= reader.maybe_finished,
            f"the head is item {head:,}, within {reader.finished:,} to {reader.maybe_finished:,}",
        )
        ledger.check(
            writer.acknowledged <= tail <= writer.sent,
            f"the tail is item {tail:,}, within {writer.acknowledged:,} to {writer.sent:,}",
        )
    writer = Writer(server, items, tail, random.Random(0))
    writer.run()
    ledger.check(writer.acknowledged == item_count, "the rest of the items was put")
    _drain(server, items, head, ledger)
    server.stop()
    ledger.close()
    return ledger.failed


def _bounds(server: Server, items: Items, if_empty: int) -> tuple[int, int]:
    """The number of the first item, and that of the one after the last, as the server holds them."""
    with server.connect() as client:
        first = client.get(QUEUE + b"/peek")
        head = if_empty if first is None else int(first[:8])
        return head, head + int(client.stats().get("queue_work_items", "0"))


def _drain(server: Server, items: Items, head: int, ledger: Ledger) -> None:
    """Take everything that is left: nothing missing, nothing twice, nothing changed."""
    wrong = 0
    with server.connect() as client:
        for number in range(head, items.count):
            wrong += client.get(QUEUE) != items[number]
        ledger.check(wrong == 0, f"the last {items.count - head:,} items came in order, byte for byte")
        ledger.check(client.get(QUEUE) is None, "and the queue was empty after them")


if __name__ == "__main__":
    sys.exit(command_line.run(torture, "Kill the server while it works; nothing may be lost.", items=100_000, kills=20))
