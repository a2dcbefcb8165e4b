"""Queue names of every kind, over deletions and restarts: no file of a deleted queue may stay in the folder.

Names are long, not ASCII, of children, of letters that differ only in case, and illegal. At the end every queue is
deleted, and the folder must hold nothing but the files of an empty one, `.kestrel/names` included.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from kestrel.names import MAX_NAME_BYTES
from tests.server.running import Client, Processes, eventually
from tests.torture.damage_scenes import files_below
from tests.torture.kill_restart import Ledger

CONFIG: Final = 'queuePath = "queues"\n'
STEPS: Final = 400
RESTARTS_EVERY: Final = 80
ALPHABETS: Final = (b"abcABC", bytes(range(0x80, 0x100)), b"+-_:,;=%$@!", b"~.", b"ab+\xe9:")
OWN_FILES: Final = (".kestrel/lock", ".kestrel/reserve", ".kestrel/storage-journal", ".kestrel/storage-scroll")


def new_name(dice: random.Random) -> bytes:
    """Return a name, which may be illegal."""
    alphabet = dice.choice(ALPHABETS)
    length = dice.choice((1, 2, 10, 61, 100, MAX_NAME_BYTES - 1, MAX_NAME_BYTES, MAX_NAME_BYTES + 1))
    name = bytes(dice.choice(alphabet) for _ in range(length))
    return b"x" + name[1:] if dice.random() < 0.3 else name


class Names:
    """The queues that there must be, with their items."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.queues: dict[bytes, list[bytes]] = {}
        self.refused = 0
        self.wrong: list[str] = []

    def step(self, client: Client, number: int) -> None:
        """Make, use or delete a queue."""
        kind = self._dice.random()
        if kind < 0.5 or not self.queues:
            self._put(client, new_name(self._dice), b"%d" % number)
        elif kind < 0.7:
            self.check(client, self._dice.choice(sorted(self.queues)))
        else:
            self.delete(client, self._dice.choice(sorted(self.queues)))

    def _put(self, client: Client, name: bytes, data: bytes) -> None:
        client.send(b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data))
        answer = client.line()
        if answer != b"STORED\r\n":
            self.refused += 1
            if not answer.startswith((b"CLIENT_ERROR", b"SERVER_ERROR", b"NOT_STORED")):
                self.wrong.append(f"a put to {name[:20]!r} was answered {answer!r}")
            return
        self.queues.setdefault(name, []).append(data)
        for child, items in self.queues.items():
            if child != name and child.startswith(name + b"+"):
                items.append(data)

    def check(self, client: Client, name: bytes) -> None:
        """Take all items of a queue, which must be those that were put."""
        found = list(iter(lambda: client.get(name), None))
        if found != self.queues[name]:
            self.wrong.append(f"{name[:20]!r} of {len(name)} bytes held {found}, not {self.queues[name]}")
        self.queues[name] = []

    def delete(self, client: Client, name: bytes) -> None:
        """Delete a queue."""
        client.ask(b"delete %b\r\n" % name, b"DELETED\r\n")
        del self.queues[name]


def strays(folder: Path) -> list[str]:
    """Return the files that a folder without queues does not have."""
    return [path for path in files_below(folder) if path not in OWN_FILES]


def torture(folder: Path, storage: str, seed: int, ledger: Ledger) -> None:
    """Make and delete queues over restarts, then delete all of them and look for files."""
    dice = random.Random(seed)
    names = Names(dice)
    queues = folder / "queues"
    with Processes(folder) as processes:
        processes.arguments = ("--storage", f"{storage}:queues?reserve=64KiB")
        server = processes.serve(CONFIG)
        client = server.connect()
        for number in range(1, STEPS + 1):
            names.step(client, number)
            if number % RESTARTS_EVERY == 0:
                client.close()
                dice.choice((server.kill, server.stop))()
                server = processes.serve(CONFIG)
                client = server.connect()
        for name in sorted(names.queues):
            names.check(client, name)
            names.delete(client, name)
        left: list[str] = []
        try:
            eventually(lambda: not strays(queues), "the files of deleted queues are gone", within_s=10)
        except AssertionError:
            left = strays(queues)
        ledger.check(not left, f"{storage}: deleted queues leave no file while the server runs: {len(left)} are left")
        client.close()
        server.stop()
        processes.serve(CONFIG).stop()
        left = strays(queues)
        ledger.check(not left, f"{storage}: nor after a restart: {len(left)} are left")
    for path in left[:5]:
        print(f"    {path}")
    what = f"queues with strange names held what was put to them; {names.refused} puts were refused"
    ledger.check(not names.wrong, f"{storage}: {what}")
    for each in names.wrong[:5]:
        print(f"    {each}")
