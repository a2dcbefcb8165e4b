"""Uses unusual queue names over deletions and restarts, and checks that no file of a deleted queue remains.

Names are long, not ASCII, of children, illegal, or differ only in case. At the end every queue is deleted. The folder
must then hold only the files of an empty folder. This includes `.kestrel/names`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from kestrel.names import MAX_NAME_BYTES
from tests.server.running import Client, Processes, eventually
from tests.torture.check_report import CheckReport
from tests.torture.damage_scenes import files_below

CONFIG: Final = 'queuePath = "queues"\n'
STEPS: Final = 400
RESTARTS_EVERY: Final = 80
ALPHABETS: Final = (b"abcABC", bytes(range(0x80, 0x100)), b"+-_:,;=%$@!", b"~.", b"ab+\xe9:")
OWN_FILES: Final = (".kestrel/lock", ".kestrel/reserve", ".kestrel/storage-journal", ".kestrel/storage-scroll")


def new_name(rng: random.Random) -> bytes:
    """Return a random name, which may be illegal."""
    alphabet = rng.choice(ALPHABETS)
    length = rng.choice((1, 2, 10, 61, 100, MAX_NAME_BYTES - 1, MAX_NAME_BYTES, MAX_NAME_BYTES + 1))
    name = bytes(rng.choice(alphabet) for _ in range(length))
    return b"x" + name[1:] if rng.random() < 0.3 else name


class ModelQueues:
    """The expected queues with their items."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.queues: dict[bytes, list[bytes]] = {}
        self.refused = 0
        self.errors: list[str] = []

    def step(self, client: Client, number: int) -> None:
        """Put to a queue, or check or delete one."""
        kind = self._rng.random()
        if kind < 0.5 or not self.queues:
            self._put(client, new_name(self._rng), b"%d" % number)
        elif kind < 0.7:
            self.check(client, self._rng.choice(sorted(self.queues)))
        else:
            self.delete(client, self._rng.choice(sorted(self.queues)))

    def _put(self, client: Client, name: bytes, data: bytes) -> None:
        client.send(b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data))
        reply = client.line()
        if reply != b"STORED\r\n":
            self.refused += 1
            if not reply.startswith((b"CLIENT_ERROR", b"SERVER_ERROR", b"NOT_STORED")):
                self.errors.append(f"a put to {name[:20]!r} was answered {reply!r}")
            return
        self.queues.setdefault(name, []).append(data)
        for child, items in self.queues.items():
            if child != name and child.startswith(name + b"+"):
                items.append(data)

    def check(self, client: Client, name: bytes) -> None:
        """Take all items of a queue, and check them."""
        found = list(iter(lambda: client.get(name), None))
        if found != self.queues[name]:
            self.errors.append(f"{name[:20]!r} of {len(name)} bytes held {found}, not {self.queues[name]}")
        self.queues[name] = []

    def delete(self, client: Client, name: bytes) -> None:
        """Delete a queue."""
        client.ask(b"delete %b\r\n" % name, b"DELETED\r\n")
        del self.queues[name]


def strays(folder: Path) -> list[str]:
    """Return the files that a folder without queues must not have."""
    return [path for path in files_below(folder) if path not in OWN_FILES]


def torture(folder: Path, storage: str, seed: int, report: CheckReport) -> None:
    """Use queues over restarts, then delete all of them and look for files."""
    rng = random.Random(seed)
    model = ModelQueues(rng)
    queues = folder / "queues"
    with Processes(folder) as processes:
        processes.arguments = ("--storage", f"{storage}:queues?reserve=64KiB")
        server = processes.serve(CONFIG)
        client = server.connect()
        for number in range(1, STEPS + 1):
            model.step(client, number)
            if number % RESTARTS_EVERY == 0:
                client.close()
                rng.choice((server.kill, server.stop))()
                server = processes.serve(CONFIG)
                client = server.connect()
        for name in sorted(model.queues):
            model.check(client, name)
            model.delete(client, name)
        remaining: list[str] = []
        try:
            eventually(lambda: not strays(queues), "the files of deleted queues are gone", within_s=10)
        except AssertionError:
            remaining = strays(queues)
        report.check(not remaining, f"{storage}: deleted queues leave no file while the server runs", remaining)
        client.close()
        server.stop()
        processes.serve(CONFIG).stop()
        remaining = strays(queues)
        report.check(not remaining, f"{storage}: deleted queues leave no file after a restart", remaining)
    rule = f"{storage}: queues with unusual names hold what was put to them; {model.refused} puts were refused"
    report.check(not model.errors, rule, model.errors)
