"""Latency of other clients while a million items expire in the same second. The goal is 50 ms.

    python -m benchmarks.expiry

A real server process starts over a journal of items that all expire at the same moment, some seconds later. A client of
another queue sends sets and gets, one at a time, and records the latency of each. There are three phases: before the
items expire, until the last expired item is removed, and just after. The items are removed by the timer, moved by the
timer to another queue, or, without a timer, removed because a client gets the last item, which does not expire.

The benchmark fails if a request misses the goal, except with --short.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from benchmarks.harness import (
    Column,
    GoalMissed,
    Results,
    options_parser,
    percentile,
    progress,
    require_room,
    scratch_folder,
    spread,
)
from benchmarks.journals import QUEUE, JournalMaker
from kestrel.config.units import MIB
from tests.memcache_text import set_
from tests.server.running import Client, Processes, Server, eventually, is_serving_in

GOAL_MS: Final = 50.0
ITEM_BYTES: Final = 10
LAST: Final = b"this one stays"
"""The last item, which does not expire."""
ELSEWHERE: Final = b"elsewhere"

BEFORE: Final = "before"
WHILE: Final = "while they leave"
AFTER: Final = "just after"
PHASES: Final = (BEFORE, WHILE, AFTER)

COLUMNS: Final = (
    Column("case", "they leave by"),
    Column("items_per_s", "items/s", ",.0f"),
    Column("items_per_s_least", "least", ",.0f"),
    Column("phase", "requests"),
    Column("requests", "how many", ",d"),
    Column("p50_ms", "p50 ms", ".2f"),
    Column("p99_ms", "p99 ms", ".2f"),
    Column("worst_ms", "worst ms", ".1f"),
    Column("worst_ms_least", "best run", ".1f"),
    Column("worst_ms_most", "worst run", ".1f"),
)

LOOKS_EVERY_S: Final = 0.01
"""The interval in seconds between requests for the number of expired items. They count as requests too."""
PATIENCE_S: Final = 120.0


class Sizes(NamedTuple):
    """The amount of work."""

    items: int
    watched_s: float
    """How long clients are measured before and after, in seconds."""
    lead_s: float
    """Seconds between making the journal and its expiry. Doubled if the server starts too late."""
    repeats: int
    disk_bytes: int
    """The disk space needed."""


FULL: Final = Sizes(1_000_000, 2.0, 5.0, 3, 256 * MIB)
SHORT: Final = Sizes(50_000, 0.3, 2.0, 1, 64 * MIB)


class Case(NamedTuple):
    """The reason why expired items are removed."""

    name: str
    config: str
    moves: bool = False
    """True if they move to another queue."""
    is_asked: bool = False
    """True if a client's get causes the removal."""


_TIMER: Final = 'expirationTimerFrequency = "1s"\n'
_MOVES: Final = f'[[queues]]\nname = "{QUEUE.decode()}"\nexpireToQueue = "{ELSEWHERE.decode()}"\n'

CASES: Final = (
    Case("the timer", _TIMER),
    Case("the timer, to another queue", _TIMER + _MOVES, moves=True),
    Case("a get that waits behind them", "", is_asked=True),
)


class Bystander:
    """A client of another queue. `latencies_ms` holds its latencies in each phase."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._requests = (
            (set_(b"other", b"x" * ITEM_BYTES), b"STORED\r\n"),
            (b"get other\r\n", b"VALUE other 0 %d\r\n%b\r\nEND\r\n" % (ITEM_BYTES, b"x" * ITEM_BYTES)),
        )
        self.latencies_ms = {phase: array("d") for phase in PHASES}

    def work(self, phase: str, is_over: Callable[[], bool]) -> None:
        """Send sets and gets until `is_over` returns True."""
        latencies_ms = self.latencies_ms[phase]
        while not is_over():
            for request, reply in self._requests:
                began = time.perf_counter()
                self._client.ask(request, reply)
                latencies_ms.append((time.perf_counter() - began) * 1000)

    def count_as(self, phase: str, noted: str) -> None:
        """Move the latencies recorded under the phase `noted` to `phase`."""
        self.latencies_ms[phase].extend(self.latencies_ms[noted])
        self.latencies_ms[noted] = array("d")

    def figures(self, phase: str, queue: bytes) -> Mapping[bytes, int]:
        """Return the server's statistics of a queue; empty if there is no such queue."""
        began = time.perf_counter()
        self._client.send(b"dump_stats %b\r\n" % queue)
        lines = []
        while (line := self._client.line()) != b"END\r\n":
            lines.append(line)
        self.latencies_ms[phase].append((time.perf_counter() - began) * 1000)
        figures = (line.strip().partition(b"=") for line in lines)
        return {name: int(value) for name, equals, value in figures if equals}


class Departure:
    """An observer of the removal of the items."""

    def __init__(self, bystander: Bystander, items: int) -> None:
        self._bystander = bystander
        self._items = items
        self._look_at = self._give_up_at = 0.0
        self._began_at = self._ended_at = time.perf_counter()

    def is_over(self) -> bool:
        """Return True if all items are removed. Ask the server at most once every `LOOKS_EVERY_S`."""
        now = time.perf_counter()
        if now < self._look_at:
            return False
        self._give_up_at = self._give_up_at or now + PATIENCE_S
        if now > self._give_up_at:
            raise TimeoutError("the expired items were not removed in time")
        figures = self._bystander.figures(WHILE, QUEUE)
        looked_at = time.perf_counter()
        self._look_at = looked_at + LOOKS_EVERY_S
        expired = figures[b"expired_items"]
        if not expired:
            self._began_at = looked_at
            self._bystander.count_as(BEFORE, WHILE)
        if expired < self._items or figures[b"open_transactions"]:
            return False
        self._ended_at = looked_at
        return True

    @property
    def items_per_s(self) -> float:
        """The rate of removal, from the first removed item on."""
        return self._items / (self._ended_at - self._began_at)


class Run(NamedTuple):
    """The result of one run."""

    items_per_s: float
    latencies_ms: Mapping[str, array[float]]


def run(case: Case, sizes: Sizes, seed: int) -> Run:
    """Let the items of a new journal expire once, and return the result."""
    lead_s = sizes.lead_s
    while lead_s < PATIENCE_S:
        with scratch_folder() as folder, ExitStack() as stack:
            expiry_s = time.time() + lead_s
            with JournalMaker(folder / "queues", seed, ITEM_BYTES, expiry_ms=int(expiry_s * 1000)) as maker:
                maker.put(sizes.items)
            server = stack.enter_context(Processes(folder)).start(f'queuePath = "queues"\n{case.config}')
            eventually(partial(_is_serving, server), "the journal is replayed", PATIENCE_S)
            bystander = Bystander(stack.enter_context(server.connect()))
            asking = stack.enter_context(server.connect())
            asking.put(QUEUE, LAST)
            items = bystander.figures(BEFORE, QUEUE)[b"items"]
            if expiry_s - time.time() > sizes.watched_s:
                if items != sizes.items + 1:
                    raise ValueError("the server did not find all items of the journal")
                return _watch(bystander, asking, case, sizes, expiry_s)
            lead_s *= 2
    raise TimeoutError("the server did not start before the items expired")


def _is_serving(server: Server) -> bool:
    return is_serving_in(server.logged())


def _watch(bystander: Bystander, asking: Client, case: Case, sizes: Sizes, expiry_s: float) -> Run:
    # Stored times are in whole milliseconds.
    bystander.work(BEFORE, lambda: time.time() > expiry_s + 0.001)
    get_last = b"get %b\r\n" % QUEUE
    if case.is_asked:
        asking.send(get_last)
    departure = Departure(bystander, sizes.items)
    bystander.work(WHILE, departure.is_over)
    if not case.is_asked:
        asking.send(get_last)
    asking.expect(b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (QUEUE, len(LAST), LAST))
    watched_until = time.perf_counter() + sizes.watched_s
    bystander.work(AFTER, lambda: time.perf_counter() > watched_until)
    if case.moves and bystander.figures(AFTER, ELSEWHERE)[b"items"] != sizes.items:
        raise ValueError("some items did not move")
    return Run(departure.items_per_s, bystander.latencies_ms)


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """Run all cases in turn, several times, and add the results."""
    runs: dict[Case, list[Run]] = {case: [] for case in CASES}
    for repeat in range(sizes.repeats):
        for number, case in enumerate(CASES):
            progress(f"expiry: by {case.name}", repeat * len(CASES) + number, sizes.repeats * len(CASES))
            runs[case].append(run(case, sizes, seed))
    progress("", 1, 1)
    for case in CASES:
        for phase in PHASES:
            _add(results, case, phase, runs[case])


def _add(results: Results, case: Case, phase: str, runs: Sequence[Run]) -> None:
    speed = spread([each.items_per_s for each in runs])
    latencies_ms = [each.latencies_ms[phase] for each in runs]
    worst = spread([max(each) for each in latencies_ms])
    results.add(
        case=case.name,
        **({"items_per_s": speed.median, "items_per_s_least": speed.least} if phase == WHILE else {}),
        phase=phase,
        requests=sum(map(len, latencies_ms)),
        p50_ms=spread([percentile(each, 50) for each in latencies_ms]).median,
        p99_ms=spread([percentile(each, 99) for each in latencies_ms]).median,
        worst_ms=worst.median,
        worst_ms_least=worst.least,
        worst_ms_most=worst.most,
    )


def check(results: Results) -> None:
    """Raise GoalMissed if a request missed the goal during the removal or just after it."""
    late = [row for row in results.rows if row["phase"] != BEFORE and float(row["worst_ms_most"]) > GOAL_MS]
    if late:
        worst = max(late, key=lambda row: float(row["worst_ms_most"]))
        raise GoalMissed(
            f"expiry: a request took {worst['worst_ms_most']:.1f} ms, over {GOAL_MS:.0f} ms"
            f" ({worst['case']}, {worst['phase']})"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    options = options_parser(__doc__).parse_args(arguments)
    sizes = SHORT if options.short else FULL
    require_room(sizes.disk_bytes)
    with Results("expiry", COLUMNS, as_json=options.json) as results:
        measure(results, sizes, options.seed)
    if not options.short:
        check(results)


if __name__ == "__main__":
    main()
