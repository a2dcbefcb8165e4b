"""Everything at once: a server, clients of all protocols, and whatever goes wrong with processes, networks and disks.

    python -m tests.torture.torture --seed 1 --seconds 400 --storage journal

Producers put single items and many at a time, with an expiry and without; consumers take for good, hold reads open,
confirm, give back, hang up and let their time go by; at plain queues, a parent and its children, an alias, a queue that
expires into another, one that a single client fills and a single one empties, in order, and one that a single client
fills, empties and deletes. Meanwhile the server is killed, stopped in order, frozen; the machine loses what was not
synced; connections are cut in the midst of requests and replies; its disk is full for a while, its writes and syncs
fail; its clock steps by minutes. Limits are so small that journals are rotated, read
behind, rewritten and packed all the time, and syncJournal is 0: what is answered is to be true.

In the end there are no more faults, the server is stopped and started, everything is taken, and the account of every
item (accounts.py) is looked through. All dice come from the seed, each client and the faults having its own; how
threads and processes interleave does not. It needs a C compiler (kestrel/testing/shim.py).
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from benchmarks.harness import progress
from kestrel.testing.shim import Shim
from tests.server.running import PATIENCE_S, Processes, Server, eventually
from tests.torture import passing
from tests.torture.accounts import CONFIRMED, SHOWN, Books, Times
from tests.torture.cables import KINDS, Network
from tests.torture.kill_restart import SMALL, Ledger
from tests.torture.workers import (
    Events,
    HoldingConsumer,
    MemcacheProducer,
    No,
    OrderedConsumer,
    PlainConsumer,
    PlainThriftConsumer,
    ReliableConsumer,
    TextConsumer,
    TextProducer,
    ThriftProducer,
    Wire,
    Worker,
    out_of_order,
)

CONFIG: Final = f"""
queuePath = "queues"
maxOpenTransactions = 100
expirationTimerFrequency = "100ms"

{SMALL}
syncJournal = 0

[[queues]]
name = "later"
maxAge = "1s"
expireToQueue = "late"

[[aliases]]
name = "orders"
destinationQueues = ["billing", "shipping"]
"""
STORAGES: Final = ("journal", "scroll")
RESERVE: Final = "256KiB"

TARGETS: Final = {
    "work": ("work",),
    "jobs": ("jobs",),
    "news": ("news", "news+a", "news+b"),
    "orders": ("billing", "shipping"),
    "later": ("later",),
}
"""What is put to, and the places where the item is then to be. `line` has a producer of its own."""

QUEUES: Final = {
    "work": ("work",),
    "jobs": ("jobs",),
    "news": ("news",),
    "news+a": ("news+a",),
    "news+b": ("news+b",),
    "billing": ("billing",),
    "shipping": ("shipping",),
    "later": ("later", "late"),
    "line": ("line",),
}
"""The queues of each place."""

ALONE: Final = frozenset(("work", "jobs", "later", "line"))
"""Where a put that is refused is nowhere: one queue, or one record, has it."""

BACKLOG: Final = 2000
PAUSE_S: Final = 0.8
"""Between two faults, on average."""

KILL, POWER, STOP, FREEZE, CUT, FULL, WRITE, SYNC, CLOCK = (
    "kill -9",
    "power failure",
    "orderly stop",
    "frozen",
    "connections cut",
    "disk full",
    "writes fail",
    "syncs fail",
    "clock steps",
)
FAULTS: Final = {KILL: 2, POWER: 2, STOP: 2, FREEZE: 2, CUT: 6, FULL: 3, WRITE: 2, SYNC: 2, CLOCK: 2}
"""How often each is chosen."""

CHECKS: Final = {
    "answers": "no client had an answer that it should not get",
    "server": "the server started and stopped each time as it should",
    "bytes": "every item that arrived was put there, byte for byte",
    "refused": "nothing arrived whose put was refused",
    "after confirm": "none came again whose get or confirm was answered",
    "without a reason": "none came twice without a reason",
    "ids": "no number of an open read was given out twice",
    "expired": "none was given out that had expired",
    passing.CHECK: "what was deleted stayed so, and nothing that came behind a deletion went with it",
}
"""What is looked at as it happens."""


class ShimmedProcesses(Processes):
    """Servers with the shim."""

    def __init__(self, folder: Path, shim: Shim) -> None:
        super().__init__(folder)
        self._shim = shim

    def environment(self) -> dict[str, str]:
        """As it is, and what the loader wants."""
        return super().environment() | self._shim.environment


class CannotStart(Exception):
    """The server does not start: the torture is over."""


class Scene:
    """The server, its network and its disk; and what is done to them."""

    def __init__(
        self, processes: Processes, network: Network, shim: Shim, times: Times, books: Books, dice: random.Random
    ) -> None:
        self._processes, self._network, self._shim = processes, network, shim
        self._times, self._books, self._dice = times, books, dice
        self.injected: Counter[str] = Counter()
        self.starts = 0
        self.server = self._serve()

    def _serve(self) -> Server:
        self.starts += 1
        try:
            server = self._processes.serve(CONFIG)
        except AssertionError as error:
            self._books.fails("server", str(error))
            raise CannotStart from error
        self._network.ports = {each: server.port_of(each) for each in ("memcache", "text", "thrift")}
        self._times.tell("the server serves")
        return server

    def do(self, workers: list[Worker]) -> None:
        """One thing goes wrong."""
        dice = self._dice
        kind = dice.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.injected[kind] += 1
        if kind in (KILL, POWER, STOP):
            self._end(kind, dice.choice((0.0, 0.0, 0.5)))
        elif kind == FREEZE:
            self._times.tell("the server is frozen")
            self.server.signal(signal.SIGSTOP)
            time.sleep(dice.random() * 0.8)
            self.server.signal(signal.SIGCONT)
            self._times.tell("it goes on")
        elif kind == CUT:
            for worker in dice.sample(workers, dice.randrange(1, 5)):
                self._network.cut(worker.cable, dice.choice(KINDS), dice)
        elif kind == CLOCK:
            ahead_s = dice.choice((0.0, dice.uniform(-600, 600), dice.uniform(-5, 5)))
            self._times.clock.append((time.monotonic(), ahead_s))
            self._shim.set_clock(ahead_s)
            self._times.tell(f"the clock is {ahead_s:.1f} s ahead")
        else:
            self._disk(kind)

    def _disk(self, kind: str) -> None:
        """The disk fails for a while, in which the server may be killed."""
        dice, shim = self._dice, self._shim
        if kind == FULL:
            free_bytes = dice.choice((0, 100, dice.randrange(100_000)))
            self._times.begins(kind, f"the disk is full but for {free_bytes} bytes")
            shim.disk_is_full(free_bytes)
        else:
            each = dice.choice((1, 1, 3, 10))
            self._times.begins(kind, f"{kind}, each {each}.")
            shim["write_fails" if kind == WRITE else "sync_fails"] = each
        time.sleep(dice.choice((0.02, 0.2, dice.random(), 2 * dice.random())))
        if dice.random() < 0.2:
            end = dice.choice((KILL, POWER))
            self.injected[end] += 1
            self._end(end, 0.0, heals=kind != FULL or dice.random() < 0.5)
        shim.heal()
        self._times.is_over(kind)
        self._times.tell("the disk is well again")

    def _end(self, kind: str, pause_s: float, *, heals: bool = True) -> None:
        """Kill or stop it, and start it anew."""
        name = "stop" if kind == STOP else "kill"
        self._times.begins(name, kind)
        if kind != STOP:
            self.server.kill()
            if kind == POWER:
                self._times.tell(f"{self._shim.power_fails()} bytes were not synced")
        else:
            self.stop()
        self._network.ports = {}
        if heals:
            self._shim.heal()
        time.sleep(self._dice.random() * pause_s)
        self.server = self._serve()
        self._times.is_over(name)

    def stop(self) -> None:
        """In order, and soon."""
        try:
            self.server.stop()
        except subprocess.TimeoutExpired:
            self._books.fails("server", f"it did not stop within {PATIENCE_S} s")
            self.server.kill()
            return
        if self.server.process.returncode != 0:
            self._books.fails("server", f"exit status {self.server.process.returncode}: {self.server.stderr()}")

    def last_start(self) -> Server:
        """There are no more faults: a stop, a start, and the right time."""
        self._shim.heal()
        self._times.clock.append((time.monotonic(), 0.0))
        self._shim.set_clock(0)
        self._end(STOP, 0.0)
        return self.server


def _workers(books: Books, network: Network, dice: random.Random, storage: str) -> list[Worker]:
    """All clients, each with a cable and with dice of its own."""
    strict = ALONE | ({"news"} if storage == "scroll" else set())
    workers: list[Worker] = []

    def add(kind: type[Worker], name: str, *arguments: object, **options: object) -> None:
        own = random.Random(dice.random())
        workers.append(kind(name, network.cable(kind.protocol), books, own, *arguments, **options))

    for name, kind in (("m", MemcacheProducer), ("t", TextProducer), ("l", ThriftProducer)):
        # A line of text is no place for any byte, so text puts where the data are lines.
        targets = {"jobs": TARGETS["jobs"]} if kind is TextProducer else TARGETS
        for number in (1, 2):
            add(kind, f"{name}{number}", targets, strict, backlog=BACKLOG)
    add(MemcacheProducer, "line", {"line": ("line",)}, strict, backlog=BACKLOG)
    consumers: tuple[tuple[type[PlainConsumer], str, tuple[str, ...]], ...] = (
        (PlainConsumer, "work", ("work",)),
        (PlainThriftConsumer, "work", ("work",)),
        (ReliableConsumer, "jobs", ("jobs",)),
        (TextConsumer, "jobs", ("jobs",)),
        (HoldingConsumer, "jobs", ("jobs",)),
        (ReliableConsumer, "news", ("news",)),
        (ReliableConsumer, "news+a", ("news+a",)),
        (HoldingConsumer, "news+b", ("news+b",)),
        (ReliableConsumer, "billing", ("billing",)),
        (PlainThriftConsumer, "shipping", ("shipping",)),
        (ReliableConsumer, "later", ("late", "late", "late", "later")),
        (HoldingConsumer, "later", ("late",)),
        (OrderedConsumer, "line", ("line",)),
    )
    for number, (consumer, place, where) in enumerate(consumers):
        add(consumer, f"c{number}-{place}", place, where)
    add(passing.PassingClient, "passing")
    return workers


def torture(folder: Path, *, seed: int, seconds: float, storage: str) -> int:
    """Let everything happen for so long, and print the ledger. Returns how many checks failed."""
    dice, ledger, times = random.Random(seed), Ledger(), Times()
    books = Books(seed, times)
    print(f"seed {seed}, {seconds:g} s, {storage}", flush=True)
    with ExitStack() as stack:
        (folder / "queues").mkdir()
        shim = stack.enter_context(Shim(folder, folder / "queues"))
        processes = stack.enter_context(ShimmedProcesses(folder, shim))
        processes.arguments = ("--storage", f"{storage}:queues?reserve={RESERVE}")
        network = stack.enter_context(Network())
        scene = Scene(processes, network, shim, times, books, random.Random(dice.random()))
        _make_children(scene.server)
        workers = _workers(books, network, dice, storage)
        for worker in workers:
            worker.thread.start()
        began = time.monotonic()
        try:
            while (passed := time.monotonic() - began) < seconds:
                progress(f"{books.counts['put']:,} put, {scene.starts} starts", int(passed), max(1, int(seconds)))
                time.sleep(dice.expovariate(1 / PAUSE_S))
                scene.do(workers)
        except CannotStart:
            pass  # which is judged below
        finally:
            shim.heal()
            progress("", 1, 1)
            for worker in workers:
                worker.is_over.set()
            for worker in workers:
                worker.thread.join(PATIENCE_S)
        for worker in workers:
            if worker.thread.is_alive():
                books.fails("answers", f"{worker.name} never came back")
        events = next(worker.events for worker in workers if isinstance(worker, OrderedConsumer))
        left = 0
        with suppress(CannotStart):
            left = _drain(scene.last_start(), books, events)
            wire = Wire(scene.server.port)
            next(worker for worker in workers if isinstance(worker, passing.PassingClient)).take_all(wire)
            wire.close()
            scene.stop()
        print(f"faults: {', '.join(f'{kind} {count}' for kind, count in sorted(scene.injected.items()))}")
        done = ", ".join(f"{name} {shim[name]:,}" for name in ("refused", "failed_writes", "failed_syncs"))
        print(f"of the disk: {done}; starts of the server: {scene.starts}")
    _judge(books, events, left, ledger)
    if ledger.failed:
        print(f"seed {seed}, {seconds:g} s, {storage}: the times above count from the start")
    ledger.close()
    return ledger.failed


def _make_children(server: Server) -> None:
    """The children are there from the beginning."""
    with server.connect() as client:
        for child in (b"news+a", b"news+b"):
            client.get(child + b"/peek")


def _drain(server: Server, books: Books, events: Events) -> int:
    """Take everything, once all has moved that will. Returns how many there were."""
    left = 0

    def has_moved() -> bool:
        with server.connect() as client:
            return client.stats().get("queue_later_open_transactions", "0") == "0"

    wire = Wire(server.port)
    for place, queues in QUEUES.items():
        for queue in queues:
            if queue == "late":
                eventually(has_moved, "what has expired has moved")
            while True:
                asked_s = time.monotonic()
                wire.send(b"get %b\r\n" % queue.encode())
                data = wire.item()
                if data is None:
                    break
                if isinstance(data, No):
                    books.fails("answers", f"the last gets of {queue}: {data!r}")
                    break
                left += 1
                delivery = books.delivered(place, queue, data, "the end", asked_s, CONFIRMED, lambda: 0.0)
                if place == "line" and delivery is not None:
                    events += [("got", delivery), ("done", delivery)]
    wire.close()
    return left


def _judge(books: Books, events: Events, left: int, ledger: Ledger) -> None:
    counts = books.counts
    in_doubt = counts["put"] - counts["stored"] - counts["refused"]
    print(
        f"items: {counts['put']:,} put, {counts['stored']:,} acknowledged, {counts['refused']:,} refused, "
        f"{in_doubt:,} in doubt; {counts['delivered']:,} delivered, {counts['confirmed']:,} confirmed, "
        f"{left:,} of them at the end"
    )
    print(f"of queues that were deleted {counts['deletions']:,} times: {counts['passing']:,} acknowledged")
    print(f"came again: {counts['again']:,}; {', '.join(f'{why} {n:,}' for why, n in sorted(books.reasons.items()))}")
    for check, promise in CHECKS.items():
        _check(ledger, books.wrong[check], promise)
    lost = books.lost()
    for place in QUEUES:
        gone = books.without_a_get(place, lost.get(place, []))
        went = len(lost.get(place, ())) - len(gone)
        promise = f"none is lost in {place}" + (f", but {went} with the lost answers to gets" if went else "")
        _check(ledger, [books.story(item) for item in gone], promise)
    _check(ledger, out_of_order(books, events, "line"), f"{len(books.order['line']):,} items of line came in order")


def _check(ledger: Ledger, stories: list[str], promise: str) -> None:
    ledger.check(not stories, promise + (f": {len(stories)} did not" if stories else ""))
    for story in stories[:SHOWN]:
        print(f"  {story}")


def main() -> int:
    """Run from the command line. The exit status says whether all checks passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="another one, another story; default: the time")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--storage", choices=STORAGES, default="journal")
    arguments = parser.parse_args()
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as folder:
        failed = torture(Path(folder), seed=seed, seconds=arguments.seconds, storage=arguments.storage)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
