"""Throughput of put and get over a queue that already holds many items, in each storage.

    python -m benchmarks.backlog [--picture docs/performance/backlog.svg]

Each backlog and storage has a real server process. One client sends a batch of 64 sets over the loopback, then a batch
of 64 gets, and repeats this. The servers take turns of a few batches in random order, so that other load on the machine
affects all of them. The result of a round is divided by that of the empty queue in the same round. There are two
ratios: by wall-clock time, including the client, and by the server's CPU time.

In a journal with more items than memory (read-behind), the window is half empty at the start, so that every get causes
reads from disk. The window of the scroll is small, whatever the setting.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import (
    Column,
    Results,
    Spread,
    options_parser,
    progress,
    require_room,
    scratch_folder,
    spread,
)
from benchmarks.journals import QUEUE
from benchmarks.process_cost import Cost, Watch
from benchmarks.storages import JOURNAL, SCROLL, make_backlog
from benchmarks.svg_chart import Curve, draw
from kestrel.config.units import GIB, MIB
from tests.memcache_text import set_
from tests.server.running import Client, Processes, Server, eventually, is_serving_in

ITEM_BYTES: Final = 64
BATCH: Final = 64
LOAD_S: Final = 300.0
"""The time limit for loading a queue."""

COLUMNS: Final = (
    Column("storage", "storage"),
    Column("max_memory_mib", "maxMemorySize, MiB", "d"),
    Column("backlog", "backlog", ",d"),
    Column("operation", "what"),
    Column("ratio", "to empty, clock", ".2f"),
    Column("ratio_least", "least", ".2f"),
    Column("ratio_most", "most", ".2f"),
    Column("cpu_ratio", "to empty, CPU", ".2f"),
    Column("cpu_ratio_least", "least", ".2f"),
    Column("cpu_ratio_most", "most", ".2f"),
    Column("per_s", "a second", ",.0f"),
    Column("per_cpu_s", "a second of CPU", ",.0f"),
    Column("memory_mib", "server, MiB", ",.0f"),
)
OPERATIONS: Final = ("put", "get")
TITLE: Final = "Throughput by the processor time of the server, as a ratio to the empty queue"


class Sizes(NamedTuple):
    """The amount of work. Each backlog is measured with each of `servers`: a storage, and maxMemorySize in MiB."""

    backlogs: Sequence[int]
    servers: Sequence[tuple[str, int]]
    rounds: int
    turns: int
    """Turns of each server in a round."""
    batches: int
    """Batches of puts in a turn, and as many batches of gets."""
    disk_bytes: int
    """The disk space needed."""


BACKLOGS: Final = (0, 1_000, 100_000, 1_000_000, 10_000_000)
FULL: Final = Sizes(BACKLOGS, ((JOURNAL, 128), (JOURNAL, 16), (SCROLL, 128)), 9, 20, 10, 5 * GIB)
SHORT: Final = Sizes(BACKLOGS[:3], ((JOURNAL, 128), (JOURNAL, 2), (SCROLL, 128)), 3, 5, 10, GIB)


class Place(NamedTuple):
    """A server's settings and its backlog."""

    storage: str
    max_memory_mib: int
    backlog: int

    @property
    def taken(self) -> int:
        """The number of items taken beforehand, so that a journal's window is half empty."""
        window = self.max_memory_mib * MIB // ITEM_BYTES
        return window // 2 if self.storage == JOURNAL and self.backlog > window else 0

    @property
    def config(self) -> str:
        """The configuration of the server, which keeps its files in `queues`."""
        where = 'storage = "scroll:queues"' if self.storage == SCROLL else 'queuePath = "queues"'
        return f'{where}\n[default]\nmaxMemorySize = "{self.max_memory_mib}MiB"\n'


Round = dict[str, Cost]
"""The cost of each operation on one server in a round."""


class Load:
    """The only client of a server."""

    def __init__(self, server: Server, client: Client, seed: int) -> None:
        self.server = server
        self._client = client
        self._watch = Watch(server.pid)
        item = random.Random(seed).randbytes(ITEM_BYTES)
        self._sets = set_(QUEUE, item) * BATCH
        self._stored = b"STORED\r\n" * BATCH
        self._gets = b"get %b\r\n" % QUEUE * BATCH
        self._head = b"VALUE %b 0 %d\r\n" % (QUEUE, ITEM_BYTES)
        self._values_bytes = BATCH * (len(self._head) + ITEM_BYTES + len(b"\r\nEND\r\n"))

    def turn(self, batches: int, costs: Round) -> None:
        """Put and get that many batches in turn, and add their costs."""
        for _ in range(batches):
            began = self._watch.now()
            self._client.ask(self._sets, self._stored)
            put = self._watch.now()
            self._client.send(self._gets)
            values = self._client.receive(self._values_bytes)
            got = self._watch.now()
            if not values.startswith(self._head) or len(values) != self._values_bytes:
                raise ValueError(f"the reply is not a batch of items: {values[:80]!r}")
            costs["put"].add(BATCH, began, put)
            costs["get"].add(BATCH, put, got)


def _round() -> Round:
    return {operation: Cost() for operation in OPERATIONS}


def _start(stack: ExitStack, folder: Path, place: Place, seed: int) -> Load:
    make_backlog(
        place.storage,
        folder / "queues",
        seed,
        ITEM_BYTES,
        place.backlog,
        taken=place.taken,
        journal_file_bytes=place.max_memory_mib * MIB,
    )
    processes = stack.enter_context(Processes(folder))
    server = processes.start(place.config)
    eventually(lambda: is_serving_in(server.logged()), "the queue is loaded", LOAD_S)
    client = stack.enter_context(server.connect())
    items = int(client.stats().get(f"queue_{QUEUE.decode()}_items", "0"))
    if items != place.backlog:
        raise ValueError(f"there are {items} items, not {place.backlog}")
    return Load(server, client, seed)


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Measure every backlog in every storage, and add the results."""
    places = [Place(*server, backlog) for server in sizes.servers for backlog in sizes.backlogs]
    dice = random.Random(seed)
    with scratch_folder() as folder, ExitStack() as stack:
        loads: dict[Place, Load] = {}
        for number, place in enumerate(places):
            progress(f"backlog: loading {place.backlog:,} items", number, len(places))
            own = folder / str(number)
            own.mkdir()
            loads[place] = _start(stack, own, place, seed)
            loads[place].turn(sizes.turns * sizes.batches, _round())
        rounds: list[dict[Place, Round]] = []
        for number in range(sizes.rounds):
            progress(f"backlog: round {number + 1} of {sizes.rounds}", number, sizes.rounds)
            costs = {place: _round() for place in places}
            for _ in range(sizes.turns):
                for place in dice.sample(places, len(places)):
                    loads[place].turn(sizes.batches, costs[place])
            rounds.append(costs)
        progress("", 1, 1)
        for place in places:
            _add(results, place, rounds, loads[place].server.memory_bytes())


def _add(results: Results, place: Place, rounds: Sequence[Mapping[Place, Round]], memory_bytes: int) -> None:
    empty = place._replace(backlog=0)
    for operation in OPERATIONS:
        pairs = [(each[place][operation], each[empty][operation]) for each in rounds]
        by_clock = spread([here.per_s / there.per_s for here, there in pairs])
        by_cpu = spread([here.per_cpu_s / there.per_cpu_s for here, there in pairs])
        results.add(
            **place._asdict(),
            operation=operation,
            ratio=by_clock.median,
            ratio_least=by_clock.least,
            ratio_most=by_clock.most,
            cpu_ratio=by_cpu.median,
            cpu_ratio_least=by_cpu.least,
            cpu_ratio_most=by_cpu.most,
            per_s=spread([here.per_s for here, _ in pairs]).median,
            per_cpu_s=spread([here.per_cpu_s for here, _ in pairs]).median,
            memory_mib=memory_bytes / MIB,
        )


def _curves(results: Results, operation: str) -> list[Curve]:
    curves: dict[str, Curve] = {}
    for row in results.rows:
        if row["operation"] == operation:
            storage, mib = row["storage"], row["max_memory_mib"]
            name = f"{storage}, maxMemorySize {mib} MiB" if storage == JOURNAL else str(storage)
            curve = curves.setdefault(name, Curve(name, []))
            ratio = Spread(*(float(row[key]) for key in ("cpu_ratio", "cpu_ratio_least", "cpu_ratio_most")))
            curve.points.append((int(row["backlog"]), ratio))
    return list(curves.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = options_parser(__doc__)
    parser.add_argument("--picture", type=Path, help="draw the curves to this SVG file")
    options = parser.parse_args(arguments)
    sizes = SHORT if options.short else FULL
    require_room(sizes.disk_bytes)
    with Results("backlog", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)
    if options.picture is not None:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        panels = {operation: _curves(results, operation) for operation in OPERATIONS}
        options.picture.write_text(draw(TITLE, panels))


if __name__ == "__main__":
    main()
