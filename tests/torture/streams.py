"""Kills the parts of a Spark stream repeatedly while items are put, and counts the items that arrive.

    python -m tests.torture.streams --seed 1 --items 100000 --faults 12 --delivery exactly_once

A streaming query on a master with two executors reads a queue and writes Parquet files. At random moments the driver is
killed and restarted from its checkpoint; an executor is killed, and Spark replaces it; the server is killed and
restarted with its folder; or all connections are cut, and new ones fail for a while. At the end each acknowledged item
must be in the files: exactly once if it was read by id, at least once if it was an open read. The queue must be empty,
without open reads.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
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
from tests.spark import java
from tests.torture import command_line
from tests.torture.check_report import CheckReport

MASTER: Final = "local-cluster[{executors},1,1024]"
LAST_MASTER: Final = "local[2]"
"""The master of the last query, which is not killed."""

CONFIG: Final = 'queuePath = "queues"\nmaxOpenTransactions = 100000\n[default]\ndefaultJournalSize = "256KiB"\n'
QUEUE: Final = "work"
PUT_COUNT: Final = 200
MAX_ROWS: Final = 5_000
HOLD: Final = "20 seconds"
"""Time until the open reads of a killed driver return."""

ENVIRONMENT: Final = {
    "PYTHONPATH": str(ROOT),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": java.OPTIONS,
}

PATIENCE: Final = "60 seconds"
STORAGES: Final = {"exactly_once": "scroll:queues", "at_least_once": "journal:queues"}
FAULTS: Final = ("executor", "driver", "server", "network")


class Producer(threading.Thread):
    """Puts numbered items, many at a time, up to a limit. Items without a reply are not put again."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__(daemon=True)
        self.stored: list[int] = []
        """Acknowledged items."""
        self.in_doubt: set[int] = set()
        """Items without a reply."""
        self.put_limit = 0
        self._port, self._count = port, count

    def run(self) -> None:
        """Put all items."""
        with BlockingClient(f"127.0.0.1:{self._port}", "thrift") as client:
            next_number = 0
            while len(self.stored) < self._count:
                if len(self.stored) >= self.put_limit:
                    time.sleep(0.01)
                    continue
                batch = range(next_number, next_number + PUT_COUNT)
                try:
                    if client.put_many(QUEUE, [b"%d:%s" % (number, b"x" * (number % 300)) for number in batch]):
                        self.stored += batch
                except ClientFailure:
                    self.in_doubt.update(batch)
                    time.sleep(0.2)
                next_number = batch.stop
                time.sleep(0.01)


class Driver:
    """The streaming query, in a process that leads a session of its own."""

    def __init__(
        self, folder: Path, port: int, delivery: str, rng: random.Random, master: str, *, available_now: bool
    ) -> None:
        options = {
            "servers": f"127.0.0.1:{port}",
            "subscribe": QUEUE,
            "delivery": delivery,
            "maxOffsetsPerTrigger": str(MAX_ROWS),
            "patience": PATIENCE,
            **({"hold": HOLD} if delivery == "at_least_once" else {}),
        }
        self._rng = rng
        self._log = folder / "driver.log"
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.torture.stream_job", "--master", master, "--folder", str(folder)),
                    *(word for name, value in options.items() for word in ("--option", name, value)),
                    *(["--available-now"] if available_now else []),
                ],
                cwd=ROOT,
                env=os.environ | ENVIRONMENT | {"SPARK_HOME": _spark_home(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Return the output of the process."""
        with self._log.open(errors="replace") as log:
            log.seek(self._log_start)
            return log.read()

    def wait_until_started(self) -> None:
        """Wait until the query runs."""
        eventually(lambda: "started" in self.output or self.process.poll() is not None, "query runs", 3 * PATIENCE_S)

    def _processes(self) -> Iterator[tuple[int, bytes]]:
        """Return the processes of the session with their command lines."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and os.getsid(int(entry.name)) == self.process.pid:
                    yield int(entry.name), (entry / "cmdline").read_bytes()

    def executors(self) -> list[int]:
        """Return the ids of the executor processes."""
        return [number for number, command in self._processes() if b"CoarseGrainedExecutorBackend" in command]

    def kill_an_executor(self) -> bool:
        """Kill a random executor. Return False if there is none."""
        executors = sorted(self.executors())
        if executors:
            os.kill(self._rng.choice(executors), signal.SIGKILL)
        return bool(executors)

    def kill(self) -> None:
        """Kill all processes of the session."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        eventually(lambda: not list(self._processes()), "all processes of the driver have ended")


def _spark_home(folder: Path) -> str:
    """Return a SPARK_HOME whose workers write their logs below that folder."""
    home = folder / "home"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)
    return str(home)


class StreamFaultInjector:
    """Injects faults into the server, its network and the driver."""

    def __init__(self, processes: Processes, relay: Relay, delivery: str, rng: random.Random, executors: int) -> None:
        self._processes, self._relay, self._delivery, self._rng = processes, relay, delivery, rng
        self._executors = executors
        self.server = self._serve()
        self.driver = self.start_driver()
        self.injected: Counter[str] = Counter()

    def _serve(self) -> Server:
        server = self._processes.serve(CONFIG, "--storage", STORAGES[self._delivery])
        self._relay.target = server.port_of("thrift")
        return server

    def start_driver(self, *, available_now: bool = False) -> Driver:
        """Start the query and return its driver."""
        master = LAST_MASTER if available_now else MASTER.format(executors=self._executors)
        network = self._processes.folder, self._relay.port
        return Driver(*network, self._delivery, self._rng, master, available_now=available_now)

    def inject(self, kind: str) -> None:
        """Inject a fault of that kind."""
        if kind == "driver":
            self.driver.kill()
            self.driver = self.start_driver()
        elif kind == "executor":
            eventually(self.driver.kill_an_executor, "there is an executor", 3 * PATIENCE_S)
        elif kind == "server":
            self._relay.target = None
            self.server.kill()
            self._relay.cut()
            time.sleep(self._rng.random() * 2)
            self.server = self._serve()
        else:
            target, self._relay.target = self._relay.target, None
            self._relay.cut()
            time.sleep(self._rng.random() * 2)
            self._relay.target = target
        self.injected[kind] += 1

    def drain(self) -> str:
        """Kill the driver, and restart the query to read the remaining items. Return its output if it failed."""
        self.driver.kill()
        self.injected["driver"] += 1
        if self._delivery == "at_least_once":  # the open reads of the driver return
            eventually(lambda: self.figures()[1] == 0, "the open reads are put back", 3 * PATIENCE_S)
        last = self.start_driver(available_now=True)
        status = last.process.wait(10 * PATIENCE_S)
        return last.output if status else ""

    def figures(self) -> tuple[int, int]:
        """Return the number of items in the queue, and of open reads."""
        with self.server.connect() as client:
            stats = client.stats()
        return int(stats.get(f"queue_{QUEUE}_items", 0)), int(stats.get(f"queue_{QUEUE}_open_transactions", 0))


def torture(folder: Path, *, seed: int, items: int, faults: int, delivery: str, executors: int) -> int:
    """Put that many items over that many faults. Print a report and return the number of failed checks."""
    rng, report = random.Random(seed), CheckReport()
    kinds = [FAULTS[number % len(FAULTS)] for number in range(faults)]
    rng.shuffle(kinds)
    print(f"seed {seed}, {items:,} items, {faults} faults, {delivery}", flush=True)
    with Processes(folder) as processes, Relay() as relay:
        injector = StreamFaultInjector(processes, relay, delivery, rng, executors)
        try:
            injector.driver.wait_until_started()
            producer = Producer(relay.port, items)
            producer.start()
            for number, kind in enumerate(kinds, start=1):
                producer.put_limit = items * (2 * number - 1) // (2 * faults + 1)
                time.sleep(rng.random() * 3)
                injector.inject(kind)
                # More items, so that some can arrive after the fault.
                producer.put_limit = items * 2 * number // (2 * faults + 1)
                continues = _progresses(injector, folder)
                print(f"{kind}: {len(producer.stored):,} put, {len(_arrived(folder)):,} arrived", flush=True)
                report.check(continues, "the query continues", [injector.driver.output[-2000:]])
            producer.put_limit = items
            producer.join(10 * PATIENCE_S)
            failed = injector.drain()
            report.check(not failed, "the query ends in order", [failed[-2000:]])
            _check_items(producer, _arrived(folder), report, is_exact=delivery == "exactly_once")
            report.check(injector.figures() == (0, 0), f"the queue is empty, without open reads: {injector.figures()}")
            counts = ", ".join(f"{kind} {count}" for kind, count in sorted(injector.injected.items()))
            print(f"faults: {counts}", flush=True)
        finally:
            injector.driver.kill()
    return report.finish()


def _progresses(injector: StreamFaultInjector, folder: Path) -> bool:
    """Wait until more items arrive. Return False if the query has failed or nothing arrives."""
    before = len(_arrived(folder))
    deadline_s = time.monotonic() + 5 * PATIENCE_S
    while time.monotonic() < deadline_s and injector.driver.process.poll() is None:
        if len(_arrived(folder)) > before:
            return True
        time.sleep(0.1)
    return False


def _arrived(folder: Path) -> list[int]:
    """Return the item numbers in the files that the query has committed."""
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


def _check_items(producer: Producer, arrived: list[int], report: CheckReport, *, is_exact: bool) -> None:
    times = Counter(arrived)
    lost = [number for number in producer.stored if number not in times]
    report.check(not lost, f"all {len(producer.stored):,} acknowledged items arrived", lost)
    invented = times.keys() - set(producer.stored) - producer.in_doubt
    report.check(not invented, "no other item arrived", sorted(invented))
    duplicates = sum(count - 1 for count in times.values())
    print(f"{len(arrived):,} arrived, {duplicates:,} of them again; {len(producer.in_doubt):,} without a reply")
    if is_exact:
        repeated = [number for number, count in times.items() if count > 1]
        report.check(not duplicates, "each arrived once", repeated)


if __name__ == "__main__":
    parser = command_line.new_parser(__doc__, items=100_000, faults=12, executors=2)
    parser.add_argument("--delivery", choices=STORAGES, default="exactly_once")
    sys.exit(command_line.run_in_folder(torture, parser))
