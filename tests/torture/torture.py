"""Runs clients of all protocols against a server while processes, networks, disks and clocks fail.

    python -m tests.torture.torture --seed 1 --seconds 400 --storage journal

Producers put single items and many at a time, with and without an expiry or a delay. Consumers take items, hold them
open, confirm, abort, disconnect, and let reads time out. The queues are plain queues, a parent and its children, an
alias, a queue that expires into another, an ordered queue with one producer and one consumer, and queues that one
client fills, empties and deletes. Limits are so small that journals are rotated, read behind, rewritten and packed all
the time. `syncJournal` is 0, so that no acknowledged change may be lost.

Meanwhile the server is killed, stopped in order and frozen. Power failures discard what was not synced. Connections are
cut within requests and replies. The disk is full for a while, and writes and syncs fail. The clock steps by minutes.

At the end the faults stop, the server restarts, all items are taken, and every item is checked (item_tracker.py). The
seed determines all random choices: each client and the faults have a generator of their own. It does not determine how
threads and processes interleave. The run needs a C compiler (kestrel/testing/shim.py).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import progress
from kestrel.testing.shim import Shim
from tests.server.running import PATIENCE_S, Processes, Server, eventually
from tests.torture import command_line, deleting_client
from tests.torture.check_report import CheckReport
from tests.torture.clients import (
    Consumer,
    ErrorReply,
    Events,
    HoldingConsumer,
    LineConnection,
    MemcacheProducer,
    OrderedConsumer,
    PlainConsumer,
    PlainThriftConsumer,
    ReliableConsumer,
    TextConsumer,
    TextProducer,
    ThriftProducer,
    Worker,
    out_of_order,
)
from tests.torture.item_tracker import CONFIRMED, STORED, ItemTracker, Timeline
from tests.torture.kill_restart import SMALL_LIMITS
from tests.torture.proxies import CUT_KINDS, ProxyNetwork

CONFIG: Final = f"""
queuePath = "queues"
maxOpenTransactions = 100
expirationTimerFrequency = "100ms"

{SMALL_LIMITS}
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
    "soon": ("soon",),
}
"""Destinations of an item that is put to each target. The target `line` has a producer of its own."""

DESTINATIONS: Final = {
    "work": ("work",),
    "jobs": ("jobs",),
    "news": ("news",),
    "news+a": ("news+a",),
    "news+b": ("news+b",),
    "billing": ("billing",),
    "shipping": ("shipping",),
    "later": ("later", "late"),
    "soon": ("soon",),
    "line": ("line",),
}
"""Queues of each destination."""

SINGLE_QUEUE_TARGETS: Final = frozenset(("work", "jobs", "later", "soon", "line"))
"""Targets that store an item in one queue, so that a refused put stores it nowhere."""

BACKLOG: Final = 2000
"""Producers do not put to a target while a destination has more items."""
PAUSE_S: Final = 0.8
"""Mean time between two faults."""

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
"""Kinds of faults with their weights."""

CHECKS: Final = {
    "replies": "no client received an unexpected reply",
    "server": "the server started and stopped as expected",
    "contents": "every delivered item had been put there, byte for byte",
    "refused": "no refused item was delivered",
    "confirmed": "no item was delivered after its get or confirm was answered",
    "duplicates": "every other duplicate has a known cause",
    "ids": "no open read id was used twice",
    "early": "no delayed item was delivered before it was due",
    "expired": "no expired item was delivered",
    deleting_client.CHECK: "deleted items stayed deleted, and no later item was deleted",
}
"""Checks that are made during the run."""


class ShimmedProcesses(Processes):
    """Servers that run with the shim."""

    def __init__(self, folder: Path, shim: Shim) -> None:
        super().__init__(folder)
        self._shim = shim

    def environment(self) -> dict[str, str]:
        """Return the environment of a server, with the variables that load the shim."""
        return super().environment() | self._shim.environment


class CannotStart(Exception):
    """The server does not start, so that the run must end."""


class FaultInjector:
    """Injects faults into the server, its network, its disk and its clock."""

    def __init__(
        self,
        processes: Processes,
        network: ProxyNetwork,
        shim: Shim,
        timeline: Timeline,
        tracker: ItemTracker,
        rng: random.Random,
    ) -> None:
        self._processes, self._network, self._shim = processes, network, shim
        self._timeline, self._tracker, self._rng = timeline, tracker, rng
        self.injected: Counter[str] = Counter()
        self.starts = 0
        self.server = self._serve()

    def _serve(self) -> Server:
        self.starts += 1
        try:
            server = self._processes.serve(CONFIG)
        except AssertionError as error:
            self._tracker.fail("server", str(error))
            raise CannotStart from error
        self._network.ports = {each: server.port_of(each) for each in ("memcache", "text", "thrift")}
        self._timeline.note("the server is ready")
        return server

    def inject(self, workers: list[Worker[Any]]) -> None:
        """Inject a random fault, and wait until it is over."""
        rng = self._rng
        kind = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.injected[kind] += 1
        if kind in (KILL, POWER, STOP):
            self._restart(kind, rng.choice((0.0, 0.0, 0.5)))
        elif kind == FREEZE:
            self._timeline.note("the server is frozen")
            self.server.signal(signal.SIGSTOP)
            time.sleep(rng.random() * 0.8)
            self.server.signal(signal.SIGCONT)
            self._timeline.note("the server continues")
        elif kind == CUT:
            for worker in rng.sample(workers, rng.randrange(1, 5)):
                self._network.cut(worker.proxy, rng.choice(CUT_KINDS), rng)
        elif kind == CLOCK:
            ahead_s = rng.choice((0.0, rng.uniform(-600, 600), rng.uniform(-5, 5)))
            self._timeline.clock.append((time.monotonic(), ahead_s))
            self._shim.set_clock(ahead_s)
            self._timeline.note(f"the clock is {ahead_s:.1f} s ahead")
        else:
            self._inject_disk_fault(kind)

    def _inject_disk_fault(self, kind: str) -> None:
        """Let disk operations fail for a while. The server may be killed meanwhile."""
        rng, shim = self._rng, self._shim
        if kind == FULL:
            free_bytes = rng.choice((0, 100, rng.randrange(100_000)))
            self._timeline.begin(kind, f"the disk is full except for {free_bytes} bytes")
            shim.disk_is_full(free_bytes)
        else:
            each = rng.choice((1, 1, 3, 10))
            self._timeline.begin(kind, f"{kind}: 1 in {each}")
            shim["write_fails" if kind == WRITE else "sync_fails"] = each
        time.sleep(rng.choice((0.02, 0.2, rng.random(), 2 * rng.random())))
        if rng.random() < 0.2:
            end = rng.choice((KILL, POWER))
            self.injected[end] += 1
            self._restart(end, 0.0, heal=kind != FULL or rng.random() < 0.5)
        shim.heal()
        self._timeline.end(kind)
        self._timeline.note("the disk works again")

    def _restart(self, kind: str, pause_s: float, *, heal: bool = True) -> None:
        """Kill or stop the server, and start it again."""
        name = "stop" if kind == STOP else "kill"
        self._timeline.begin(name, kind)
        if kind != STOP:
            self.server.kill()
            if kind == POWER:
                self._timeline.note(f"{self._shim.power_fails()} bytes were not synced")
        else:
            self.stop()
        self._network.ports = {}
        if heal:
            self._shim.heal()
        time.sleep(self._rng.random() * pause_s)
        self.server = self._serve()
        self._timeline.end(name)

    def stop(self) -> None:
        """Stop the server in order."""
        try:
            self.server.stop()
        except subprocess.TimeoutExpired:
            self._tracker.fail("server", f"the server did not stop within {PATIENCE_S} s")
            self.server.kill()
            return
        if self.server.process.returncode != 0:
            self._tracker.fail("server", f"exit status {self.server.process.returncode}: {self.server.stderr()}")

    def final_restart(self) -> Server:
        """Restart the server without faults, with the latest clock of the run, so that delayed items become due."""
        self._shim.heal()
        ahead_s = max(offset_s for _, offset_s in self._timeline.clock)
        self._timeline.clock.append((time.monotonic(), ahead_s))
        self._shim.set_clock(ahead_s)
        self._restart(STOP, 0.0)
        return self.server


def _make_workers(tracker: ItemTracker, network: ProxyNetwork, rng: random.Random, storage: str) -> list[Worker[Any]]:
    """Return all clients, each with a proxy and a random generator of its own."""
    atomic = SINGLE_QUEUE_TARGETS | ({"news"} if storage == "scroll" else set())
    workers: list[Worker[Any]] = []

    def add(kind: type[Worker[Any]], name: str, *arguments: object, **options: object) -> None:
        own = random.Random(rng.random())
        workers.append(kind(name, network.new_proxy(kind.protocol), tracker, own, *arguments, **options))

    for name, kind in (("m", MemcacheProducer), ("t", TextProducer), ("l", ThriftProducer)):
        # The text protocol carries only lines, so it is used for the targets whose data are lines.
        targets = {each: TARGETS[each] for each in ("jobs", "soon")} if kind is TextProducer else TARGETS
        for number in (1, 2):
            add(kind, f"{name}{number}", targets, atomic, backlog=BACKLOG)
    add(MemcacheProducer, "line", {"line": ("line",)}, atomic, backlog=BACKLOG)
    consumers: tuple[tuple[type[Consumer[Any]], str, tuple[str, ...]], ...] = (
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
        (ReliableConsumer, "soon", ("soon",)),
        (TextConsumer, "soon", ("soon",)),
        (HoldingConsumer, "soon", ("soon",)),
        (OrderedConsumer, "line", ("line",)),
    )
    for number, (consumer, destination, queues) in enumerate(consumers):
        add(consumer, f"c{number}-{destination}", destination, queues)
    add(deleting_client.DeletingClient, "deleting")
    return workers


def torture(folder: Path, *, seed: int, seconds: float, storage: str) -> int:
    """Run all clients and faults for that time, and print a report. Return the number of failed checks."""
    rng, report, timeline = random.Random(seed), CheckReport(), Timeline()
    tracker = ItemTracker(seed, timeline)
    print(f"seed {seed}, {seconds:g} s, {storage}", flush=True)
    with ExitStack() as stack:
        (folder / "queues").mkdir()
        shim = stack.enter_context(Shim(folder, folder / "queues"))
        processes = stack.enter_context(ShimmedProcesses(folder, shim))
        processes.arguments = ("--storage", f"{storage}:queues?reserve={RESERVE}")
        network = stack.enter_context(ProxyNetwork())
        injector = FaultInjector(processes, network, shim, timeline, tracker, random.Random(rng.random()))
        _create_children(injector.server)
        workers = _make_workers(tracker, network, rng, storage)
        for worker in workers:
            worker.thread.start()
        began = time.monotonic()
        try:
            while (passed := time.monotonic() - began) < seconds:
                progress(f"{tracker.counts['put']:,} put, {injector.starts} starts", int(passed), max(1, int(seconds)))
                time.sleep(rng.expovariate(1 / PAUSE_S))
                injector.inject(workers)
        except CannotStart:
            pass  # the tracker has the failure
        finally:
            shim.heal()
            progress("", 1, 1)
            for worker in workers:
                worker.stopping.set()
            for worker in workers:
                worker.thread.join(PATIENCE_S)
        for worker in workers:
            if worker.thread.is_alive():
                tracker.fail("replies", f"{worker.name} hangs")
        events = next(worker.events for worker in workers if isinstance(worker, OrderedConsumer))
        remaining = 0
        with suppress(CannotStart):
            remaining = _drain(injector.final_restart(), tracker, events)
            connection = LineConnection(injector.server.port)
            deleter = next(worker for worker in workers if isinstance(worker, deleting_client.DeletingClient))
            deleter.take_all(connection)
            connection.close()
            injector.stop()
        print(f"faults: {', '.join(f'{kind} {count}' for kind, count in sorted(injector.injected.items()))}")
        operations = ", ".join(f"{name} {shim[name]:,}" for name in ("refused", "failed_writes", "failed_syncs"))
        print(f"disk operations: {operations}; server starts: {injector.starts}")
    _check_items(tracker, events, remaining, report)
    if report.failed:
        print(f"seed {seed}, {seconds:g} s, {storage}: times in the histories are since the start of the run")
    return report.finish()


def _create_children(server: Server) -> None:
    """Create the children before the first put to their parent."""
    with server.connect() as client:
        for child in (b"news+a", b"news+b"):
            client.get(child + b"/peek")


def _drain(server: Server, tracker: ItemTracker, events: Events) -> int:
    """Take all remaining items, after those that expire or were delayed have moved. Return their number."""
    remaining = 0

    def has_moved() -> bool:
        with server.connect() as client:
            return client.stats().get("queue_later_open_transactions", "0") == "0"

    def has_no_delayed_items() -> bool:
        with server.connect() as client:
            return client.stats()["delayed_items"] == "0"

    eventually(has_no_delayed_items, "delayed items have become visible")
    connection = LineConnection(server.port)
    for destination, queues in DESTINATIONS.items():
        for queue in queues:
            if queue == "late":
                eventually(has_moved, "expired items have moved")
            while True:
                requested_s = time.monotonic()
                connection.send(b"get %b\r\n" % queue.encode())
                data = connection.read_item()
                if data is None:
                    break
                if isinstance(data, ErrorReply):
                    tracker.fail("replies", f"final get of {queue}: {data!r}")
                    break
                remaining += 1
                delivery = tracker.add_delivery(destination, queue, data, "drain", requested_s, CONFIRMED, lambda: 0.0)
                if destination == "line" and delivery is not None:
                    events += [("got", delivery), ("done", delivery)]
    connection.close()
    return remaining


def _check_items(tracker: ItemTracker, events: Events, remaining: int, report: CheckReport) -> None:
    counts = tracker.counts
    unclear = counts["put"] - counts["stored"] - counts["refused"]
    print(
        f"items: {counts['put']:,} put, {counts['stored']:,} acknowledged, {counts['refused']:,} refused, "
        f"{unclear:,} without a clear reply; {counts['delivered']:,} delivered, {counts['confirmed']:,} confirmed, "
        f"{remaining:,} of them at the end"
    )
    delayed = [item for item in tracker.items.values() if item.delay_ms and item.state == STORED]
    print(f"delayed items: {len(delayed):,} acknowledged")
    print(f"deleted queues: {counts['deletions']:,} deletions, {counts['puts to deleted queues']:,} acknowledged")
    causes = ", ".join(f"{cause} {count:,}" for cause, count in sorted(tracker.causes.items()))
    print(f"duplicates: {counts['redelivered']:,}; {causes}")
    for check, rule in CHECKS.items():
        _check(report, rule, tracker.failures[check])
    lost = tracker.lost_items()
    for destination in DESTINATIONS:
        unexplained = tracker.unexplained(destination, lost.get(destination, []))
        explained = len(lost.get(destination, ())) - len(unexplained)
        rule = f"{destination}: no item was lost"
        if explained:
            rule += f", except {explained} with gets whose reply was lost"
        _check(report, rule, [tracker.history(item) for item in unexplained])
    count = len(tracker.put_order["line"])
    _check(report, f"line: {count:,} items were delivered in order", out_of_order(tracker, events, "line"))


def _check(report: CheckReport, rule: str, failures: list[str]) -> None:
    report.check(not failures, rule + (f": {len(failures)} failures" if failures else ""), failures)


if __name__ == "__main__":
    parser = command_line.new_parser(__doc__, seconds=120.0)
    parser.add_argument("--storage", choices=STORAGES, default="journal")
    sys.exit(command_line.run_in_folder(torture, parser))
