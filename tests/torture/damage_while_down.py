"""Damages one file while the server is down, between a kill and the next start.

In each round clients put, take, open, confirm and abandon numbered items. Then the server is killed, one file of the
queue folder is damaged, the server restarts, and all items are taken. An acknowledged and unconfirmed item must be
delivered, unless its record is in the damaged file.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.server.running import Client, Processes, Server
from tests.torture.check_report import CheckReport
from tests.torture.damage_matrix import CUT, EMPTIED, MISSING, ZEROED, Damage
from tests.torture.damage_scenes import Files, files_below

CONFIG: Final = """queuePath = "queues"

[default]
maxMemorySize = "4KiB"
defaultJournalSize = "4KiB"
"""
ROUNDS: Final = 16
ITEMS: Final = 120
TARGETS: Final = ((b"work", (b"work",)), (b"news", (b"news", b"news+a")))
"""Targets of puts, and the queues that then hold the item."""
QUEUES: Final = (b"work", b"news", b"news+a")
ITEM: Final = re.compile(rb"<[0-9]{7}>")
HEAD: Final = b"\x02"
"""First byte of a record in a scroll's reader file. The next 8 bytes are the id of the head. The last record counts."""
BEFORE_DATA: Final = (*range(1, 30), *range(9, 17), *range(9, 17))
"""Distances of fields from the data. The bytes of the id of a scroll's item are listed more often."""
FLIPPED: Final = "bit flipped"
UNTRIED: Final = (".kestrel/lock", ".kestrel/reserve", ".kestrel/damaged/", ".kestrel/storage-")


class Clients:
    """Clients that number the items, and list those that must still be delivered."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0
        self.put: set[bytes] = set()
        self.pending: dict[bytes, set[bytes]] = defaultdict(set)

    def work(self, server: Server) -> None:
        """Put some items, and finish some of them."""
        rng = self._rng
        with server.connect() as client, server.connect() as holder:
            for queue in QUEUES:
                client.get(queue + b"/peek")  # create the child before the first put to its parent
            for _ in range(ITEMS):
                name, targets = rng.choice(TARGETS)
                self._count += 1
                data = b"<%07d>" % self._count + b"x" * rng.randrange(200)
                client.put(name, data)
                self.put.add(data)
                for queue in targets:
                    self.pending[queue].add(data)
                queue = rng.choice(QUEUES)
                ending = rng.random()
                if ending < 0.3:
                    self._finished(queue, client.get(queue))
                elif ending < 0.5 and (taken := client.get(queue + b"/open")) is not None:
                    if rng.random() < 0.6:
                        client.get(queue + b"/close")
                        self._finished(queue, taken)
                    else:
                        client.get(queue + b"/abort")
            for queue in QUEUES:
                holder.get(queue + b"/open")  # still open when the server is killed
            server.kill()

    def _finished(self, queue: bytes, data: bytes | None) -> None:
        self.pending[queue].discard(data or b"")


def take_all(client: Client) -> dict[bytes, set[bytes]]:
    """Take and return all items of each queue."""
    return {queue: set(iter(lambda queue=queue: client.get(queue), None)) for queue in QUEUES}  # type: ignore[misc]


def damage_one(folder: Path, files: Files, rng: random.Random) -> Damage:
    """Damage one file of the folder."""
    paths = [path for path in files if not path.startswith(UNTRIED) and "~~" not in path]
    readers = [path for path in paths if ".read." in path]
    path = rng.choice(readers if readers and rng.random() < 0.4 else paths)
    before = files[path]
    kinds = [EMPTIED]
    if ".read." not in path:
        kinds.append(MISSING)  # without its file, a reader of a scroll does not exist
    if before:
        kinds.append(CUT)
        if "." in path:  # in a journal's current file, a changed byte may finish any item
            kinds += [FLIPPED] * 4 + [ZEROED]
    kind = rng.choice(kinds)
    at = rng.randrange(len(before)) if before else 0
    items = [match.start() for match in ITEM.finditer(before)]
    if before and rng.random() < 0.7:  # prefer ids: most bytes are data, and most faults concern ids
        if ".read." in path:
            at = min(len(before) - 1, before.rfind(HEAD) + rng.randrange(1, 9))
        elif items:
            at = max(0, rng.choice(items) - rng.choice(BEFORE_DATA))
    if kind == MISSING:
        (folder / path).unlink()
        return Damage(path, kind, at, None)
    after = b"" if kind == EMPTIED else before[:at]
    if kind in (FLIPPED, ZEROED):
        after += bytes([0 if kind == ZEROED else before[at] ^ 1 << rng.randrange(8)]) + before[at + 1 :]
    (folder / path).write_bytes(after)
    return Damage(path, kind, at, after)


def torture(folder: Path, storage: str, seed: int, report: CheckReport) -> None:
    """Work, kill, damage, restart and take all items, several times."""
    rng = random.Random(seed)
    clients = Clients(rng)
    lost: list[str] = []
    invented: list[str] = []
    rounds = cost = 0
    with Processes(folder) as processes:
        processes.arguments = ("--storage", f"{storage}:queues?reserve=64KiB")
        server = processes.serve(CONFIG)
        for _ in range(ROUNDS):
            clients.work(server)
            before = files_below(folder / "queues")
            damage = damage_one(folder / "queues", before, rng)
            try:
                server = processes.serve(CONFIG)
                with server.connect() as client:
                    found = take_all(client)
            except (AssertionError, OSError, ValueError) as error:
                lost.append(f"{damage}: the server does not serve: {str(error)[-300:]}")
                break
            rounds += 1
            for queue in QUEUES:
                gone = clients.pending.pop(queue, set()) - found[queue]
                excused = set()
                if not damage.path.startswith(".kestrel/"):
                    excused = {data for data in gone if data in before[damage.path]}
                cost += len(excused)
                if gone - excused:
                    lost.append(f"{damage}: {len(gone - excused)} of {queue.decode()}")
                for data in found[queue] - clients.put:
                    if data not in (damage.contents or b""):
                        invented.append(f"{damage}: {queue.decode()} delivered {data[:30]!r}")
        server.kill()
    description = f"{rounds} damaged files cost no item of another file ({cost} of their own)"
    report.check(rounds == ROUNDS and not lost, f"{storage}: {description}", lost)
    report.check(not invented, f"{storage}: no item was invented", invented)
