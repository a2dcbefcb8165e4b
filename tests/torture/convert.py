"""Kills kestrel-convert again and again, runs it again each time, and compares what servers would serve.

    python -m tests.torture.convert --seed 1 --items 1000000 --kills 10

A folder of journals is made: a large queue, a parent with children that share most of its items, small queues, items
that expire, that failed, that are open. It becomes a folder of scrolls, and that becomes one of journals; each time the
command is killed while it reads, writes and compares, and run again. The real storages start in copies of all three.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from kestrel.journal.records import encode_item, encode_open, encode_put_back
from tests.child import LONG_S, Child
from tests.journal.handwritten import REMOVE, confirm
from tests.scroll.handwritten import T
from tests.tools.converted import each_served
from tests.tools.tool_processes import ENVIRONMENT, command
from tests.torture.kill_restart import Ledger

FAMILY: Final = (b"orders", b"orders+log", b"orders+mail")
SMALL: Final = tuple(b"small%d" % number for number in range(20))
_FLUSH_BYTES: Final = 1 << 20


class Journal:
    """The one file of a queue, which is being written, and what is in the queue by then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[bytes] = []
        self._bytes = 0
        self._left = 0
        self._last_xid = 0
        self._opened: list[int] = []

    def put(self, record: bytes) -> None:
        """One item more."""
        self._left += 1
        self._append(record)

    def take(self, dice: random.Random) -> None:
        """Something happens to the head, and to the items that are open."""
        if self._left and dice.random() < 0.5:
            self._left -= 1
            self._append(REMOVE)
        elif self._left:
            self._left -= 1
            self._last_xid += 1
            self._opened.append(self._last_xid)
            self._append(encode_open(self._last_xid))
        if len(self._opened) > 5:
            xid = self._opened.pop(dice.randrange(len(self._opened)))
            if dice.random() < 0.5:
                self._append(confirm(xid))
            else:
                self._left += 1
                self._append(encode_put_back(xid))

    def _append(self, record: bytes) -> None:
        self._records.append(record)
        self._bytes += len(record)
        if self._bytes > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Let the file have all of it."""
        with self._path.open("ab") as file:
            file.writelines(self._records)
        self._records.clear()
        self._bytes = 0


def make_journals(folder: Path, item_count: int, dice: random.Random) -> None:
    """A folder in which about so many items were put, one to a parent counting for each of the family."""
    folder.mkdir()
    journals = {name: Journal(folder / os.fsdecode(name)) for name in (b"work", *FAMILY, *SMALL)}
    put = 0
    while put < item_count:
        data = b"%d " % put + dice.randbytes(dice.choice((10, 50, 100, 400)))
        add_ms = T + put // 3
        record = encode_item(data, add_ms, add_ms + 10**9 if dice.random() < 0.1 else 0)
        names = dice.choices((FAMILY, FAMILY[1:2], (b"work",), SMALL[:1], (dice.choice(SMALL),)), (15, 5, 70, 5, 5))[0]
        for name in names:
            journals[name].put(record)
            if dice.random() < 0.1:
                journals[name].take(dice)
        put += len(names)
    for journal in journals.values():
        journal.flush()


def digests(kind: str, folder: Path) -> dict[bytes, tuple[int, str]]:
    """Of each queue that a server would serve, how many items there are, and what they are, in order."""
    found = {}
    for name, items in each_served(kind, folder):
        number, digest = 0, sha256()
        for item in items:
            number += 1
            digest.update(repr(item).encode())
        found[name] = number, digest.hexdigest()
    return found


def size_of(folder: Path) -> int:
    """What the files in a folder take, in bytes; some may go meanwhile."""
    size = 0
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.is_file():
                size += path.stat().st_size
    return size


class Conversion:
    """One from a folder to another."""

    def __init__(self, source: str, target: Path, kind: str) -> None:
        self.target = target
        self._staging = target.with_name(target.name + ".converting")
        self._command = command("convert", "--quiet", source, f"{kind}:{target}")

    def _begin(self) -> Child[bytes]:
        return Child(self._command, env=ENVIRONMENT)

    def run(self) -> int:
        """Let it go to its end. Returns the exit status."""
        with self._begin() as process:
            return process.wait(LONG_S)

    def is_killed_at(self, size: int, delay_s: float) -> bool:
        """Kill it so long after the new folder has so many bytes. Returns whether it was still at work by then."""
        with self._begin() as process:
            while process.poll() is None and size_of(self._staging / "queues") < size:
                time.sleep(0.002)
            time.sleep(delay_s)
            process.kill()
        return process.returncode == -signal.SIGKILL and not self.target.exists()

    def clear(self) -> None:
        """Leave nothing of it, not even what it has made."""
        for folder in (self.target, self._staging):
            shutil.rmtree(folder, ignore_errors=True)


def torture(folder: Path, *, seed: int, item_count: int, kills: int) -> int:
    """Convert about so many items there and back, killed so often each time. Returns how many checks failed."""
    dice = random.Random(seed)
    ledger = Ledger()
    print(f"seed {seed}, {item_count:,} items, {kills} kills each way")
    source, kind = folder / "0", "journal"
    make_journals(source, item_count, dice)
    there = digests(kind, source)
    left = sum(count for count, _ in there.values())
    ledger.check(left > 0, f"{left:,} items are left in {len(there)} queues, {size_of(source):,} bytes")
    for number, new_kind in enumerate(("scroll", "journal"), 1):
        named = f"{kind}:{source}"
        whole = Conversion(named, folder / f"{number}-whole", new_kind)
        began = time.monotonic()
        status = whole.run()
        whole_s = time.monotonic() - began
        size = size_of(whole.target)
        ledger.check(status == 0, f"{kind} to {new_kind}: {whole_s:.1f} s, {size:,} bytes, where nothing happens to it")
        killed = Conversion(named, folder / str(number), new_kind)
        moments = sorted(dice.choice((0.0, dice.random(), dice.random(), 1.0)) for _ in range(kills))
        began = time.monotonic()
        for moment in moments:
            while not killed.is_killed_at(int(size * moment), dice.random() * whole_s / 10):
                ledger.check(size_of(killed.target) == size, "the kill came too late, the target is whole: once more")
                killed.clear()
            print(f"kill when {moment:.0%} was written")
        ledger.check(killed.run() == 0, f"run to its end, {time.monotonic() - began:.1f} s with {kills} kills")
        ledger.check(size_of(killed.target) == size, "as many bytes as where nothing happens to it")
        ledger.check(not list(folder.glob("*.converting")), "nothing is left beside the target")
        source, kind = killed.target, new_kind
        ledger.check(digests(kind, source) == there, f"a server serves of the {kind}s what it served before, in order")
    ledger.close()
    return ledger.failed


def main() -> int:
    """Run from the command line. The exit status says whether all checks passed."""
    parser = argparse.ArgumentParser(description="Kill kestrel-convert on its way to scrolls and back; compare.")
    parser.add_argument("--seed", type=int, default=None, help="another one, other items; default: the time")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_args()
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as folder:
        failed = torture(Path(folder), seed=seed, item_count=arguments.items, kills=arguments.kills)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
