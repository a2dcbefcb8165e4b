"""Damages one file while the server is down: between a kill and the next start.

In each round clients put, take, open, confirm and abandon numbered items; the server is killed; one file of the queue
folder is damaged; the server starts, and everything is taken. An item that was acknowledged and not confirmed must
arrive, unless its record lies in the damaged file.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from tests.server.running import Client, Processes, Server
from tests.torture.damage_scenes import Files, files_below
from tests.torture.kill_restart import Ledger

CONFIG: Final = """queuePath = "queues"

[default]
maxMemorySize = "4KiB"
defaultJournalSize = "4KiB"
"""
ROUNDS: Final = 16
ITEMS: Final = 120
TARGETS: Final = ((b"work", (b"work",)), (b"news", (b"news", b"news+a")))
"""The queues that are put to, and those that then hold the item."""
QUEUES: Final = (b"work", b"news", b"news+a")
ITEM: Final = re.compile(rb"<[0-9]{7}>")
HEAD: Final = b"\x02"
"""The record in a reader file of a scroll that has the id of the head in its next 8 bytes. The last one counts."""
BEFORE_DATA: Final = (*range(1, 30), *range(9, 17), *range(9, 17))
"""Distances of fields from the data. The id of an item in a scroll is hit more often than others."""
UNTRIED: Final = (".kestrel/lock", ".kestrel/reserve", ".kestrel/damaged/", ".kestrel/storage-")


class Damaged(NamedTuple):
    """What was done to a file, and its contents before and after it. None: the file is missing."""

    what: str
    before: bytes
    after: bytes | None


class Clients:
    """Numbers the items, and knows which of them must still arrive."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._count = 0
        self.put: set[bytes] = set()
        self.pending: dict[bytes, set[bytes]] = defaultdict(set)

    def work(self, server: Server) -> None:
        """Put some items, and finish some of them."""
        dice = self._dice
        with server.connect() as client, server.connect() as holder:
            for queue in QUEUES:
                client.get(queue + b"/peek")  # a child gets what is put from now on
            for _ in range(ITEMS):
                name, targets = dice.choice(TARGETS)
                self._count += 1
                data = b"<%07d>" % self._count + b"x" * dice.randrange(200)
                client.put(name, data)
                self.put.add(data)
                for queue in targets:
                    self.pending[queue].add(data)
                queue = dice.choice(QUEUES)
                ending = dice.random()
                if ending < 0.3:
                    self._finished(queue, client.get(queue))
                elif ending < 0.5 and (taken := client.get(queue + b"/open")) is not None:
                    if dice.random() < 0.6:
                        client.get(queue + b"/close")
                        self._finished(queue, taken)
                    else:
                        client.get(queue + b"/abort")
            for queue in QUEUES:
                holder.get(queue + b"/open")  # open when the server is killed
            server.kill()

    def _finished(self, queue: bytes, data: bytes | None) -> None:
        self.pending[queue].discard(data or b"")


def take_all(client: Client) -> dict[bytes, set[bytes]]:
    """Return all items of each queue, which is empty then."""
    return {queue: set(iter(lambda queue=queue: client.get(queue), None)) for queue in QUEUES}  # type: ignore[misc]


def damage_one(folder: Path, files: Files, dice: random.Random) -> tuple[str, Damaged]:
    """Damage one file of the folder; returns which, and how."""
    paths = [path for path in files if not path.startswith(UNTRIED) and "~~" not in path]
    readers = [path for path in paths if ".read." in path]
    path = dice.choice(readers if readers and dice.random() < 0.4 else paths)
    before = files[path]
    kinds = ["emptied"]
    if ".read." not in path:
        kinds.append("missing")  # a reader of a scroll whose file is missing is not there
    if before:
        kinds.append("cut")
        if "." in path:  # in the current file of a journal a changed byte may finish any item
            kinds += ["bit flipped"] * 4 + ["zeroed"]
    kind = dice.choice(kinds)
    at = dice.randrange(len(before)) if before else 0
    items = [match.start() for match in ITEM.finditer(before)]
    if before and dice.random() < 0.7:  # most bytes are data, and most faults are in the handling of ids
        if ".read." in path:
            at = min(len(before) - 1, before.rfind(HEAD) + dice.randrange(1, 9))
        elif items:
            at = max(0, dice.choice(items) - dice.choice(BEFORE_DATA))
    after: bytes | None = b""
    if kind == "missing":
        after = None
        (folder / path).unlink()
    else:
        if kind == "cut":
            after = before[:at]
        elif kind in ("bit flipped", "zeroed"):
            byte = 0 if kind == "zeroed" else before[at] ^ (1 << dice.randrange(8))
            after = before[:at] + bytes([byte]) + before[at + 1 :]
        assert after is not None
        (folder / path).write_bytes(after)
    return path, Damaged(f"{path} {kind} at {at} of {len(before)}", before, after)


def torture(folder: Path, storage: str, seed: int, ledger: Ledger) -> None:
    """Work, kill, damage, start and take everything, a number of times."""
    dice = random.Random(seed)
    clients = Clients(dice)
    lost: list[str] = []
    made_up: list[str] = []
    rounds = cost = 0
    with Processes(folder) as processes:
        processes.arguments = ("--storage", f"{storage}:queues?reserve=64KiB")
        server = processes.serve(CONFIG)
        for _ in range(ROUNDS):
            clients.work(server)
            path, damaged = damage_one(folder / "queues", files_below(folder / "queues"), dice)
            try:
                server = processes.serve(CONFIG)
                with server.connect() as client:
                    found = take_all(client)
            except (AssertionError, OSError, ValueError) as error:
                lost.append(f"{damaged.what}: the server does not serve: {str(error)[-300:]}")
                break
            rounds += 1
            for queue in QUEUES:
                gone = clients.pending.pop(queue, set()) - found[queue]
                excused = set() if path.startswith(".kestrel/") else {data for data in gone if data in damaged.before}
                cost += len(excused)
                if gone - excused:
                    lost.append(f"{damaged.what}: {len(gone - excused)} of {queue.decode()}")
                for data in found[queue] - clients.put:
                    if data not in (damaged.after or b""):
                        made_up.append(f"{damaged.what}: {queue.decode()} delivered {data[:30]!r}")
        server.kill()
    what = f"{rounds} damages of one file while the server was down cost no item of another ({cost} of their own)"
    ledger.check(rounds == ROUNDS and not lost, f"{storage}: {what}")
    for each in lost[:5]:
        print(f"    {each}")
    ledger.check(not made_up, f"{storage}: no item was made up")
    for each in made_up[:5]:
        print(f"    {each}")
