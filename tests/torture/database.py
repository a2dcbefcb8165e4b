"""Kills the server, and the database under it, in turn, while clients put and get: nothing is lost, doubled, or moved.

    python -m tests.torture.database --seed 1 --items 20000 --kills 20

Of each of two queues one client puts numbered items, each of them once, and another takes them as open reads, of which
it confirms most. The server outlives the kills of its database: what clients asked meanwhile is answered when that is
back, or refused. An item whose put was acknowledged is seen, until a confirm of it was; one that was refused never is.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Final

from kestrel_postgres.testing import PrivateServer

from tests.server.running import Client, Processes, Server, set_request
from tests.torture import command_line
from tests.torture.kill_restart import GONE, SMALL, Items, Ledger

CONFIG: Final = f'maxOpenTransactions = 100\n{SMALL}'
QUEUES: Final = (b"work", b"mail")
PAUSE_S: Final = 0.1
"""What a client waits that was refused, or has nothing to do."""
LONGEST_S: Final = 60.0
"""How long a reply may take while the database is away."""


class Fate:
    """What is known of the items of one queue."""

    def __init__(self, queue: bytes, items: Items) -> None:
        self.queue = queue
        self.items = items
        self.sent = 0
        self.until = 0
        """No items of this number and later are put yet."""
        self.stored: set[int] = set()
        """Acknowledged."""
        self.refused: set[int] = set()
        self.seen: set[int] = set()
        self.gone: set[int] = set()
        """The confirm was acknowledged."""
        self.maybe_gone: set[int] = set()
        """The confirm was sent, and never answered."""
        self.newest = -1
        """The highest that was seen."""
        self.wrong: list[str] = []

    def saw(self, data: bytes) -> int:
        """An item came: which one it is. What is wrong with that is noted."""
        number = int(data[:8])
        if data != self.items[number]:
            self.wrong.append(f"item {number} of {len(data)} bytes is not what was put")
        if number in self.gone:
            self.wrong.append(f"item {number} came again after its confirm")
        if number in self.refused:
            self.wrong.append(f"item {number} was refused, and came")
        if number not in self.seen and number < self.newest:
            self.wrong.append(f"item {number} came behind item {self.newest}")
        self.seen.add(number)
        self.newest = max(self.newest, number)
        return number

    def missing(self) -> set[int]:
        """Acknowledged, never confirmed, and not seen."""
        return self.stored - self.seen - self.gone - self.maybe_gone


class Worker:
    """A client with a thread of its own, which connects again when it has hung up."""

    def __init__(self, fate: Fate, dice: random.Random) -> None:
        self.fate = fate
        self.dice = dice

    def start(self, server: Server) -> None:
        """Work with that server until it is gone or there is nothing more to do."""
        self._server = server
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The server is about to be killed, or all is done."""
        self._is_over.set()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                with self._server.connect() as client:
                    client.socket.settimeout(LONGEST_S)
                    while not self._is_over.is_set() and self.works(client):
                        pass
        except GONE as error:
            if not self._is_over.is_set():
                self.fate.wrong.append(f"{type(self).__name__}: {type(error).__name__}: {error}")

    def works(self, client: Client) -> bool:
        """One round; False when it wants another connection."""
        raise AssertionError("each has its own")


class Writer(Worker):
    """Puts items in their order, in windows."""

    def works(self, client: Client) -> bool:
        """One window."""
        fate = self.fate
        window = range(fate.sent, min(fate.until, fate.sent + self.dice.randrange(1, 60)))
        fate.sent = window.stop
        client.send(b"".join(set_request(fate.queue, fate.items[number]) for number in window))
        for number in window:
            reply = client.line()
            if reply == b"STORED\r\n":
                fate.stored.add(number)
            elif reply.startswith(b"SERVER_ERROR"):
                fate.refused.add(number)
            else:
                raise ConnectionError(reply)
        if not window or window[-1] in fate.refused:
            time.sleep(PAUSE_S)
        return True


class Reader(Worker):
    """Takes items as open reads, and confirms most of them."""

    def works(self, client: Client) -> bool:
        """A handful."""
        fate, count = self.fate, self.dice.randrange(1, 40)
        client.send(b"get %b/open\r\n" % fate.queue * count)
        opened = [number for number in (self._next(client) for _ in range(count)) if number is not None]
        if len(opened) < count:
            time.sleep(PAUSE_S)
        if self.dice.random() < 0.1:
            return False  # what is open goes back to the head
        if opened:
            fate.maybe_gone.update(opened)
            client.send(b"confirm %b %d\r\n" % (fate.queue, len(opened)))
            reply = client.line()
            if reply == b"END\r\n":
                fate.gone.update(opened)
            elif not reply:
                raise ConnectionError
            else:
                fate.maybe_gone.difference_update(opened)
                fate.wrong.append(f"a confirm was answered with {reply!r}")
        return True

    def _next(self, client: Client) -> int | None:
        line = client.line()
        if not line:
            raise ConnectionError
        if line == b"END\r\n" or line.startswith(b"SERVER_ERROR"):
            return None
        data = client.receive(int(line.split()[3]))
        client.expect(b"\r\nEND\r\n")
        return self.fate.saw(data)


def torture(processes: Processes, *, seed: int, item_count: int, kills: int) -> int:
    """Put and take so many items over so many kills, and print the ledger. Returns how many checks failed."""
    dice = random.Random(seed)
    ledger = Ledger()
    print(f"seed {seed}, {item_count:,} items, {kills} kills")
    fates = [Fate(queue, Items(seed + number, item_count // len(QUEUES))) for number, queue in enumerate(QUEUES)]
    workers: list[Writer | Reader] = [
        kind(fate, random.Random(dice.random())) for fate in fates for kind in (Writer, Reader)
    ]
    with PrivateServer(is_synced=True) as database:
        arguments = ("--storage", f"postgres:{database.conninfo}")
        server = processes.serve(CONFIG, *arguments)
        _start(workers, server)
        for kill in range(1, kills + 1):
            _let_work(fates, kill / kills)
            time.sleep(dice.random() * 0.05)
            began = time.monotonic()
            if kill % 2:
                who = "server"
                server = _kill_server(processes, server, workers, arguments)
            else:
                who = "database"
                database.kill()
                time.sleep(dice.random() * 0.3)
                database.start()
            print(f"kill {kill}, of the {who}: there again after {time.monotonic() - began:.2f} s; {_so_far(fates)}")
            wrong = [each for fate in fates for each in fate.wrong]
            for each in wrong[:5]:
                print(f"          {each}")
            if wrong:
                ledger.check(False, "each item seen was one that may come, byte for byte, and in order")
                break
        _let_work(fates, 1.0)
        _stop(workers)
        for fate in fates:
            with server.connect() as client:
                while (data := client.get(fate.queue)) is not None:
                    fate.gone.add(fate.saw(data))
            name = fate.queue.decode()
            ledger.check(not fate.wrong, f"{name}: all {len(fate.seen):,} items seen might come, in order")
            ledger.check(not fate.missing(), f"{name}: all {len(fate.stored):,} items acknowledged were seen")
        server.stop()
    ledger.close()
    return ledger.failed


def _start(workers: list[Writer | Reader], server: Server) -> None:
    for worker in workers:
        worker.start(server)


def _stop(workers: list[Writer | Reader]) -> None:
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join()


def _kill_server(
    processes: Processes, server: Server, workers: list[Writer | Reader], arguments: tuple[str, ...]
) -> Server:
    for worker in workers:
        worker.stop()
    server.kill()
    for worker in workers:
        worker.join()
    again = processes.serve(CONFIG, *arguments)
    _start(workers, again)
    return again


def _let_work(fates: list[Fate], part: float) -> None:
    """Until that part of all items has been sent."""
    until_s = time.monotonic() + LONGEST_S
    for fate in fates:
        fate.until = round(fate.items.count * part)
    while any(fate.sent < fate.until and not fate.wrong for fate in fates):
        assert time.monotonic() < until_s, "the clients do not get on"
        time.sleep(0.001)


def _so_far(fates: list[Fate]) -> str:
    stored, refused, gone = (sum(len(each) for each in sets) for sets in zip(
        *((fate.stored, fate.refused, fate.gone) for fate in fates), strict=True
    ))
    return f"{stored:,} stored, {refused:,} refused, {gone:,} confirmed"


if __name__ == "__main__":
    sys.exit(
        command_line.run(torture, "Kill the server and the database in turn.", items=20_000, kills=20, storage=None)
    )
