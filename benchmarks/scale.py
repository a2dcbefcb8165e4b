"""Start time, memory, descriptors and latency as connections, queues and items grow.

    python -m benchmarks.scale [--only connections]

Each case is a real server process with one quantity raised: idle connections, queues of ten items, or items in one
queue. The last case raises all of them. A start is timed from the launch of the process, including Python's own start,
until the server logs that it serves. It is timed after an orderly stop and after a kill, and followed by a first get.

Then pairs of a set and a get of 64 bytes are sent, one at a time, each over a random connection to a random queue. The
server's CPU time is compared with that of an empty server of the same storage, in turn. Wall-clock times vary with how
the machine schedules the two processes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import (
    Column,
    Figure,
    Results,
    options_parser,
    percentile,
    progress,
    require_room,
    scratch_folder,
    spread,
)
from benchmarks.journals import QUEUE
from benchmarks.process_cost import Cost, Watch
from benchmarks.storages import STORAGES, make_backlog
from kestrel.config.units import GIB, MIB
from kestrel.server.process import raise_file_limit
from tests.memcache_text import set_
from tests.server.running import Client, Processes, Server, eventually, is_serving_in

ITEM_BYTES: Final = 64
ITEMS_OF_EACH: Final = 10
"""Items in each of many queues."""
LOAD_S: Final = 300.0
"""The time limit for loading the queues."""
TURN: Final = 50
"""Pairs of requests before the empty server takes its turn."""

COLUMNS: Final = (
    Column("storage", "storage"),
    Column("connections", "connections", ",d"),
    Column("queues", "queues", ",d"),
    Column("backlog", "backlog", ",d"),
    Column("start_s", "start, s", ".2f"),
    Column("start_killed_s", "after a kill", ".2f"),
    Column("first_get_ms", "first get, ms", ".2f"),
    Column("memory_mib", "memory, MiB", ",.1f"),
    Column("descriptors", "descriptors", ",d"),
    Column("connect_us", "a connection, us", ".0f"),
    Column("p50_ms", "p50, ms", ".3f"),
    Column("p99_ms", "p99, ms", ".3f"),
    Column("cpu_us", "CPU a request, us", ".1f"),
    Column("cpu_ratio", "to empty", ".2f"),
)


class Case(NamedTuple):
    """The number of connections, queues and items in one queue."""

    connections: int = 0
    queues: int = 0
    backlog: int = 0

    @property
    def names(self) -> list[bytes]:
        """The names of the queues that hold a few items, or of the only queue."""
        return [b"queue-%06d" % number for number in range(self.queues)] or [QUEUE]


class Sizes(NamedTuple):
    """The amount of work."""

    cases: Sequence[Case]
    starts: int
    """Starts after a stop, and as many after a kill."""
    pairs: int
    """Pairs of a set and a get."""
    disk_bytes: int
    """The disk space needed."""


FULL: Final = Sizes(
    (
        Case(),
        Case(connections=1_000),
        Case(connections=5_000),
        Case(queues=1_000),
        Case(queues=10_000),
        Case(backlog=1_000_000),
        Case(backlog=10_000_000),
        Case(5_000, 10_000, 10_000_000),
    ),
    starts=3,
    pairs=10_000,
    disk_bytes=4 * GIB,
)
SHORT: Final = Sizes(
    (Case(), Case(connections=500), Case(queues=500), Case(backlog=100_000), Case(500, 500, 100_000)),
    starts=1,
    pairs=500,
    disk_bytes=GIB // 4,
)


class Scene:
    """A folder of queues, and the servers that run over it one after the other."""

    def __init__(self, processes: Processes, storage: str) -> None:
        self._processes = processes
        self._storage = storage

    def start(self) -> tuple[Server, float]:
        """Start a server. Return it, and the seconds until it served."""
        began = time.perf_counter()
        server = self._processes.start('queuePath = "queues"', "--storage", f"{self._storage}:queues")
        eventually(lambda: is_serving_in(server.logged()), "the queues are loaded", LOAD_S)
        return server, time.perf_counter() - began

    def fill(self, case: Case, seed: int) -> None:
        """Make the queues, and stop the server that has put the items."""
        folder = self._processes.folder / "queues"
        if case.backlog:
            make_backlog(self._storage, folder, seed, ITEM_BYTES, case.backlog)
        server, _ = self.start()
        item = random.Random(seed).randbytes(ITEM_BYTES)
        with server.connect() as client:
            for name in case.names[: case.queues]:
                client.put(name, *[item] * ITEMS_OF_EACH)
        server.stop()


def _first_get(server: Server, queue: bytes, *, is_empty: bool) -> float:
    """Open the first item, abort, and return the seconds that the get took."""
    with server.connect() as client:
        began = time.perf_counter()
        item = client.get(queue + b"/open")
        seconds = time.perf_counter() - began
        if (item is None) is not is_empty:
            raise ValueError(f"the first get returned {item!r:.80}")
        if item is not None:
            client.ask(b"get %b/abort\r\n" % queue, b"END\r\n")
    return seconds


def _turn(
    watch: Watch, cost: Cost, clients: Sequence[Client], queues: Sequence[bytes], dice: random.Random
) -> list[float]:
    """Send pairs of requests over random connections to random queues. Return the seconds of each request."""
    seconds, item = [], dice.randbytes(ITEM_BYTES)
    first = watch.now()
    for _ in range(TURN):
        client, queue = dice.choice(clients), dice.choice(queues)
        began = time.perf_counter()
        client.ask(set_(queue, item), b"STORED\r\n")
        stored = time.perf_counter()
        if client.get(queue) is None:
            raise ValueError("the queue was empty")
        seconds += [stored - began, time.perf_counter() - stored]
    cost.add(2 * TURN, first, watch.now())
    return seconds


def _measure_case(storage: str, case: Case, sizes: Sizes, folder: Path, empty: Server, seed: int) -> dict[str, Figure]:
    dice = random.Random(seed)
    with ExitStack() as stack:
        scene = Scene(stack.enter_context(Processes(folder)), storage)
        scene.fill(case, seed)
        stopped: list[float] = []
        killed: list[float] = []
        first_gets: list[float] = []
        for number in range(2 * sizes.starts):
            server, seconds = scene.start()
            (killed if number % 2 else stopped).append(seconds)
            queue = QUEUE if case.backlog else dice.choice(case.names)
            first_gets.append(_first_get(server, queue, is_empty=not case.backlog and not case.queues))
            if number % 2:
                server.stop()
            else:
                server.kill()
        server, _ = scene.start()
        began = time.perf_counter()
        clients = []
        for _ in range(max(1, case.connections)):
            clients.append(stack.enter_context(server.connect()))
            clients[-1].ask(b"get nothing-there/peek\r\n", b"END\r\n")
        connected = time.perf_counter() - began
        names = case.names + [QUEUE] * bool(case.backlog)
        watch, watch_empty, cost, cost_empty = Watch(server.pid), Watch(empty.pid), Cost(), Cost()
        clients_of_empty = [stack.enter_context(empty.connect())]
        _turn(watch, Cost(), clients, names, dice)
        requests = []
        for _ in range(sizes.pairs // TURN):
            requests += _turn(watch, cost, clients, names, dice)
            _turn(watch_empty, cost_empty, clients_of_empty, [QUEUE], dice)
        return {
            "storage": storage,
            **case._asdict(),
            "start_s": spread(stopped).median,
            "start_killed_s": spread(killed).median,
            "first_get_ms": spread(first_gets).median * 1000,
            "memory_mib": server.memory_bytes() / MIB,
            "descriptors": server.open_files(),
            "connect_us": connected / len(clients) * 1e6,
            "p50_ms": percentile(requests, 50) * 1000,
            "p99_ms": percentile(requests, 99) * 1000,
            "cpu_us": 1e6 / cost.per_cpu_s,
            "cpu_ratio": cost_empty.per_cpu_s / cost.per_cpu_s,
        }


def measure(results: Results, sizes: Sizes, seed: int, storages: Sequence[str] = STORAGES) -> None:
    """Measure every case in every storage, and add the results."""
    raise_file_limit()
    todo = [(storage, case) for case in sizes.cases for storage in storages]
    with scratch_folder() as folder, ExitStack() as stack:
        empty: dict[str, Server] = {}
        for storage in storages:
            own = folder / storage
            own.mkdir()
            empty[storage], _ = Scene(stack.enter_context(Processes(own)), storage).start()
        for number, (storage, case) in enumerate(todo):
            progress(f"scale: {storage}, {case}", number, len(todo))
            own = folder / str(number)
            own.mkdir()
            results.add(**_measure_case(storage, case, sizes, own, empty[storage], seed))
        progress("", 1, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--only", choices=Case._fields, help="run only the cases with this quantity")
    options = parser.parse_args(arguments)
    sizes = SHORT if options.short else FULL
    if options.only:
        sizes = sizes._replace(cases=[case for case in sizes.cases if getattr(case, options.only)])
    require_room(sizes.disk_bytes)
    with Results("scale", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)


if __name__ == "__main__":
    main()
