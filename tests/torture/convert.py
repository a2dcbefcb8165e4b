"""Kills kestrel-convert repeatedly, resumes it each time, and compares what the servers would serve.

    python -m tests.torture.convert --seed 1 --items 1000000 --kills 10

The program writes a folder of journals: a large queue, a parent with children that share most of its items, small
queues, and items that expire, that failed and that are open. It converts the folder to scrolls, and these to journals.
Each time the command is killed while it reads, writes and compares, and is run again. The storages load copies of all
three folders.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from kestrel.journal.records import encode_item
from tests.child import LONG_S, Child
from tests.journal.handwritten import RandomTakes
from tests.scroll.handwritten import T
from tests.tools.converted import each_served
from tests.tools.tool_processes import ENVIRONMENT, command
from tests.torture import command_line
from tests.torture.check_report import CheckReport

FAMILY: Final = (b"orders", b"orders+log", b"orders+mail")
SMALL: Final = tuple(b"small%d" % number for number in range(20))
_FLUSH_BYTES: Final = 1 << 20


class Journal:
    """Writes the only journal file of a queue."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self._path = path
        self._records: list[bytes] = []
        self._bytes = 0
        self._takes = RandomTakes(rng)

    def take(self) -> None:
        """Take or open the head, or confirm or put back an open read."""
        self.append(self._takes.record())

    def append(self, record: bytes) -> None:
        """Add a record."""
        self._records.append(record)
        self._bytes += len(record)
        if self._bytes > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered records to the file."""
        with self._path.open("ab") as file:
            file.writelines(self._records)
        self._records.clear()
        self._bytes = 0


def make_journals(folder: Path, item_count: int, rng: random.Random) -> None:
    """Write a folder with about that many items. An item of the parent counts for each queue of the family."""
    folder.mkdir()
    journals = {name: Journal(folder / os.fsdecode(name), rng) for name in (b"work", *FAMILY, *SMALL)}
    put = 0
    while put < item_count:
        data = b"%d " % put + rng.randbytes(rng.choice((10, 50, 100, 400)))
        add_ms = T + put // 3
        record = encode_item(data, add_ms, add_ms + 10**9 if rng.random() < 0.1 else 0)
        names = rng.choices((FAMILY, FAMILY[1:2], (b"work",), SMALL[:1], (rng.choice(SMALL),)), (15, 5, 70, 5, 5))[0]
        for name in names:
            journals[name].append(record)
            if rng.random() < 0.1:
                journals[name].take()
        put += len(names)
    for journal in journals.values():
        journal.flush()


def digests(kind: str, folder: Path) -> dict[bytes, tuple[int, str]]:
    """Return the number and a digest of the items in each queue that a server would serve."""
    found = {}
    for name, items in each_served(kind, folder):
        number, digest = 0, sha256()
        for item in items:
            number += 1
            digest.update(repr(item).encode())
        found[name] = number, digest.hexdigest()
    return found


def size_of(folder: Path) -> int:
    """Return the size of the files in a folder in bytes. Files may disappear meanwhile."""
    size = 0
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.is_file():
                size += path.stat().st_size
    return size


class Conversion:
    """A conversion of a folder into another."""

    def __init__(self, source: str, target: Path, kind: str) -> None:
        self.target = target
        self._staging = target.with_name(target.name + ".converting")
        self._command = command("convert", "--quiet", source, f"{kind}:{target}")

    def _start(self) -> Child[bytes]:
        return Child(self._command, env=ENVIRONMENT)

    def run(self) -> int:
        """Run the command to its end. Return its exit status."""
        with self._start() as process:
            return process.wait(LONG_S)

    def kill_at(self, size: int, delay_s: float) -> bool:
        """Kill the command `delay_s` after the new folder has `size` bytes. Return False if it had ended before."""
        with self._start() as process:
            while process.poll() is None and size_of(self._staging / "queues") < size:
                time.sleep(0.002)
            time.sleep(delay_s)
            process.kill()
        return process.returncode == -signal.SIGKILL and not self.target.exists()

    def clear(self) -> None:
        """Delete the target, finished or not."""
        for folder in (self.target, self._staging):
            shutil.rmtree(folder, ignore_errors=True)


def torture(folder: Path, *, seed: int, items: int, kills: int) -> int:
    """Convert about that many items there and back, with that many kills each. Return the number of failed checks."""
    rng = random.Random(seed)
    report = CheckReport()
    print(f"seed {seed}, {items:,} items, {kills} kills in each direction")
    source, kind = folder / "0", "journal"
    make_journals(source, items, rng)
    expected = digests(kind, source)
    count = sum(count for count, _ in expected.values())
    report.check(count > 0, f"the journals have {count:,} items in {len(expected)} queues, {size_of(source):,} bytes")
    for number, new_kind in enumerate(("scroll", "journal"), 1):
        source_url = f"{kind}:{source}"
        uninterrupted = Conversion(source_url, folder / f"{number}-whole", new_kind)
        began = time.monotonic()
        status = uninterrupted.run()
        uninterrupted_s = time.monotonic() - began
        size = size_of(uninterrupted.target)
        report.check(status == 0, f"{kind} to {new_kind}, not killed: {uninterrupted_s:.1f} s, {size:,} bytes")
        killed = Conversion(source_url, folder / str(number), new_kind)
        fractions = sorted(rng.choice((0.0, rng.random(), rng.random(), 1.0)) for _ in range(kills))
        began = time.monotonic()
        for fraction in fractions:
            while not killed.kill_at(int(size * fraction), rng.random() * uninterrupted_s / 10):
                is_complete = size_of(killed.target) == size
                report.check(is_complete, "the conversion ended before the kill, and its target is complete: try again")
                killed.clear()
            print(f"killed after {fraction:.0%} was written")
        report.check(killed.run() == 0, f"completed in {time.monotonic() - began:.1f} s with {kills} kills")
        report.check(size_of(killed.target) == size, "the target has as many bytes as without kills")
        report.check(not list(folder.glob("*.converting")), "no unfinished target remains")
        source, kind = killed.target, new_kind
        report.check(digests(kind, source) == expected, f"a server serves the same items in order from the {kind}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(command_line.run_in_folder(torture, command_line.new_parser(__doc__, items=100_000, kills=10)))
