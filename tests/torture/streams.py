"""Kills everything that has a part in a stream of Spark, while items are put, and counts what arrives.

    python -m tests.torture.streams --seed 1 --items 100000 --faults 12 --delivery exactly_once

A queue is read by a streaming query on a master with two executors, which writes Parquet files. Again and again, at
random moments, one of these is done: the driver is killed and started anew from its checkpoint; an executor is killed,
which Spark replaces; the server is killed and started anew over its folder; all connections are cut, and nobody gets
through for a while. At the end every item whose put was answered is in the files: exactly once where it was read by
ids, at least once where it was read by open reads; and nothing is left in the queue, open or not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow.dataset
import pyspark

from kestrel.client.blocking import BlockingClient
from kestrel.client.errors import ClientFailure
from tests.server.relay import Relay
from tests.server.running import PATIENCE_S, ROOT, Processes, Server, eventually
from tests.torture.kill_restart import Ledger

MASTER: Final = "local-cluster[{executors},1,1024]"
LAST_MASTER: Final = "local[2]"
"""What reads the rest: nothing is killed any more."""

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 100000\n[default]\ndefaultJournalSize = "256KiB"\n'
QUEUE: Final = "work"
PUT_AT_ONCE: Final = 200
MAX_ROWS: Final = 5_000
HOLD: Final = "20 seconds"
"""How long an open read of a driver that was killed is away."""

_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No Java lives long enough here for the compiler that takes most time."""

ENVIRONMENT: Final = {
    "PYTHONPATH": str(ROOT),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": _JAVA,
    "SPARK_DAEMON_JAVA_OPTS": _JAVA,
}

PATIENCE: Final = "60 seconds"
STORAGES: Final = {"exactly_once": "scroll:queues", "at_least_once": "journal:queues"}
FAULTS: Final = ("driver", "executor", "server", "network")


class Putter(threading.Thread):
    """Puts numbered items, some at a time, as far as it may; what nobody knows of is put no second time."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__(daemon=True)
        self.stored: list[int] = []
        """Acknowledged."""
        self.in_doubt: set[int] = set()
        self.may_put = 0
        """So many."""
        self._port, self._count = port, count

    def run(self) -> None:
        """Put them all."""
        with BlockingClient(f"127.0.0.1:{self._port}", "thrift") as client:
            next_number = 0
            while len(self.stored) < self._count:
                if len(self.stored) >= self.may_put:
                    time.sleep(0.01)
                    continue
                batch = range(next_number, next_number + PUT_AT_ONCE)
                try:
                    if client.put_many(QUEUE, [b"%d:%s" % (number, b"x" * (number % 300)) for number in batch]):
                        self.stored += batch
                except ClientFailure:
                    self.in_doubt.update(batch)
                    time.sleep(0.2)
                next_number = batch.stop
                time.sleep(0.01)


class Driver:
    """The streaming query, in a process of its own with all that it starts."""

    def __init__(
        self, folder: Path, port: int, delivery: str, dice: random.Random, master: str, *, available_now: bool
    ) -> None:
        options = {
            "servers": f"127.0.0.1:{port}",
            "queue": QUEUE,
            "delivery": delivery,
            "maxRows": str(MAX_ROWS),
            "patience": PATIENCE,
            **({"hold": HOLD} if delivery == "at_least_once" else {}),
        }
        self._dice = dice
        self._log = folder / "driver.log"
        self._begun_at = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.torture.stream_job", "--master", master, "--folder", str(folder)),
                    *(word for name, value in options.items() for word in ("--option", name, value)),
                    *(["--available-now"] if available_now else []),
                ],
                cwd=ROOT,
                env=os.environ | ENVIRONMENT | {"SPARK_HOME": _home(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it printed."""
        with self._log.open(errors="replace") as log:
            log.seek(self._begun_at)
            return log.read()

    def has_started(self) -> None:
        """Return when the query runs."""
        eventually(lambda: "started" in self.said or self.process.poll() is not None, "the query runs", 3 * PATIENCE_S)

    def _processes(self) -> Iterator[tuple[int, bytes]]:
        """All of its session, with their command lines."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and os.getsid(int(entry.name)) == self.process.pid:
                    yield int(entry.name), (entry / "cmdline").read_bytes()

    def executors(self) -> list[int]:
        """Their processes."""
        return [number for number, command in self._processes() if b"CoarseGrainedExecutorBackend" in command]

    def kill_an_executor(self) -> bool:
        """Whether there was one."""
        executors = sorted(self.executors())
        if executors:
            os.kill(self._dice.choice(executors), signal.SIGKILL)
        return bool(executors)

    def kill(self) -> None:
        """It and all that it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        eventually(lambda: not list(self._processes()), "all that the driver has started is gone")


def _home(folder: Path) -> str:
    """A home for Spark whose workers' logs go into that folder."""
    home = folder / "home"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return str(home)


class Scene:
    """The server, its network and the driver; and what is done to them."""

    def __init__(
        self, processes: Processes, relay: Relay, delivery: str, dice: random.Random, executors: int
    ) -> None:
        self._processes, self._relay, self._delivery, self._dice = processes, relay, delivery, dice
        self._executors = executors
        self.server = self._serve()
        self.driver = self.drive()
        self.injected: Counter[str] = Counter()

    def _serve(self) -> Server:
        server = self._processes.serve(CONFIG, "--storage", STORAGES[self._delivery])
        self._relay.target = server.port_of("thrift")
        return server

    def drive(self, *, available_now: bool = False) -> Driver:
        """Start the query."""
        master = LAST_MASTER if available_now else MASTER.format(executors=self._executors)
        network = self._processes.folder, self._relay.port
        return Driver(*network, self._delivery, self._dice, master, available_now=available_now)

    def fault(self, kind: str) -> None:
        """Do one of them."""
        if kind == "driver":
            self.driver.kill()
            self.driver = self.drive()
        elif kind == "executor":
            eventually(self.driver.kill_an_executor, "there is an executor", 3 * PATIENCE_S)
        elif kind == "server":
            self._relay.target = None
            self.server.kill()
            self._relay.cut()
            time.sleep(self._dice.random() * 2)
            self.server = self._serve()
        else:
            target, self._relay.target = self._relay.target, None
            self._relay.cut()
            time.sleep(self._dice.random() * 2)
            self._relay.target = target
        self.injected[kind] += 1

    def drain(self) -> str:
        """Let the query end in order, and read what is left. Returns what it said if it failed."""
        self.driver.kill()
        if self._delivery == "at_least_once":  # what the driver held comes back
            eventually(lambda: self.figures()[1] == 0, "its open reads went back", 3 * PATIENCE_S)
        last = self.drive(available_now=True)
        status = last.process.wait(10 * PATIENCE_S)
        return last.said if status else ""

    def figures(self) -> tuple[int, int]:
        """Items of the queue, and open reads."""
        with self.server.connect() as client:
            stats = client.stats()
        return int(stats.get(f"queue_{QUEUE}_items", 0)), int(stats.get(f"queue_{QUEUE}_open_transactions", 0))


def torture(folder: Path, *, seed: int, item_count: int, faults: int, delivery: str, executors: int) -> int:
    """Put so many items over so many faults, and print the ledger. Returns how many checks failed."""
    dice, ledger = random.Random(seed), Ledger()
    kinds = [FAULTS[number % len(FAULTS)] for number in range(faults)]
    dice.shuffle(kinds)
    print(f"seed {seed}, {item_count:,} items, {faults} faults, {delivery}", flush=True)
    with Processes(folder) as processes, Relay() as relay:
        scene = Scene(processes, relay, delivery, dice, executors)
        try:
            scene.driver.has_started()
            putter = Putter(relay.port, item_count)
            putter.start()
            for number, kind in enumerate(kinds, start=1):
                putter.may_put = item_count * (2 * number - 1) // (2 * faults + 1)
                time.sleep(dice.random() * 3)
                scene.fault(kind)
                putter.may_put = item_count * 2 * number // (2 * faults + 1)  # behind it there is something to arrive
                survives = _goes_on(scene, folder)
                print(f"{kind}: {len(putter.stored):,} put, {len(_arrived(folder)):,} arrived", flush=True)
                ledger.check(survives, "the query goes on" + ("" if survives else f": {scene.driver.said[-2000:]}"))
            putter.may_put = item_count
            putter.join(10 * PATIENCE_S)
            failed = scene.drain()
            ledger.check(not failed, f"the query ends in order{failed[-2000:]}")
            _judge(putter, _arrived(folder), ledger, is_exact=delivery == "exactly_once")
            ledger.check(scene.figures() == (0, 0), f"nothing is left in the queue, or open: {scene.figures()}")
            told = ", ".join(f"{kind} {count}" for kind, count in sorted(scene.injected.items()))
            print(f"faults injected: {told}", flush=True)
        finally:
            scene.driver.kill()
    ledger.close()
    return ledger.failed


def _goes_on(scene: Scene, folder: Path) -> bool:
    """Wait until more arrives, or the query has failed."""
    before = len(_arrived(folder))
    deadline_s = time.monotonic() + 5 * PATIENCE_S
    while time.monotonic() < deadline_s and scene.driver.process.poll() is None:
        if len(_arrived(folder)) > before:
            return True
        time.sleep(0.1)
    return False


def _arrived(folder: Path) -> list[int]:
    """The numbers in the files that the query has committed."""
    sink = folder / "sink"
    log = sink / "_spark_metadata"
    if not log.exists():
        return []
    names: set[str] = set()
    for batch in log.iterdir():
        if batch.name.partition(".")[0].isdecimal():
            names.update(_files_in(batch))
    files = [str(sink / name) for name in names]
    if not files:
        return []
    numbers: list[int] = pyarrow.dataset.dataset(files).to_table()["number"].to_pylist()
    return numbers


def _files_in(batch: Path) -> set[str]:
    return {
        Path(json.loads(line)["path"]).name
        for line in batch.read_text().splitlines()
        if line.startswith("{") and json.loads(line)["action"] == "add"
    }


def _judge(putter: Putter, arrived: list[int], ledger: Ledger, *, is_exact: bool) -> None:
    times = Counter(arrived)
    lost = [number for number in putter.stored if number not in times]
    ledger.check(not lost, f"{len(putter.stored):,} items were acknowledged, and all arrived {lost[:5]}")
    invented = times.keys() - set(putter.stored) - putter.in_doubt
    ledger.check(not invented, f"nothing else arrived {sorted(invented)[:5]}")
    doubles = sum(count - 1 for count in times.values())
    print(f"          {len(arrived):,} arrived, {doubles:,} of them once more; {len(putter.in_doubt):,} in doubt")
    if is_exact:
        ledger.check(not doubles, f"each of them once {[number for number, count in times.items() if count > 1][:5]}")


def main() -> int:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description="Kill all that has a part in a stream: nothing is lost.")
    parser.add_argument("--seed", type=int, default=None, help="another one, another story; default: the time")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--delivery", choices=STORAGES, default="exactly_once")
    arguments = parser.parse_args()
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as folder:
        failed = torture(
            Path(folder),
            seed=seed,
            item_count=arguments.items,
            faults=arguments.faults,
            delivery=arguments.delivery,
            executors=arguments.executors,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
