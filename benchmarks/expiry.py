"""A million items that expire in the same second keep no client waiting for more than 50 ms.

    python -m benchmarks.expiry

A real server process starts over a journal of items that all expire at the same moment, some seconds later. A client
of another queue sets an item, gets it, and so on, one request at a time, and notes how long each takes: before that
moment, until the last of the million has left, and just after. They leave by the timer, by the timer to another queue,
or, where there is no timer, because a client gets the one item that stands behind them. Ends with an error if a
request took longer than promised, but for the short form.
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
from tests.server.running import Client, Processes, Server, eventually, is_serving_in, set_request

GOAL_MS: Final = 50.0
ITEM_BYTES: Final = 10
LAST: Final = b"this one stays"
"""It stands behind those that expire."""
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
"""How often it is asked how many are left; that is a request as any other."""
PATIENCE_S: Final = 120.0


class Sizes(NamedTuple):
    """How much is measured."""

    items: int
    watched_s: float
    """How long clients are watched before and after."""
    lead_s: float
    """How long after the making of the journal its items expire; twice that if the server starts too late."""
    repeats: int
    disk_bytes: int
    """The room that is needed."""


FULL: Final = Sizes(1_000_000, 2.0, 5.0, 3, 256 * MIB)
SHORT: Final = Sizes(50_000, 0.3, 2.0, 1, 64 * MIB)


class Case(NamedTuple):
    """What makes the items leave."""

    name: str
    config: str
    moves: bool = False
    """Whether they go to another queue."""
    is_asked: bool = False
    """Whether a client's get is what makes them leave."""


_TIMER: Final = 'expirationTimerFrequency = "1s"\n'
_MOVES: Final = f'[[queues]]\nname = "{QUEUE.decode()}"\nexpireToQueue = "{ELSEWHERE.decode()}"\n'

CASES: Final = (
    Case("the timer", _TIMER),
    Case("the timer, to another queue", _TIMER + _MOVES, moves=True),
    Case("a get that waits behind them", "", is_asked=True),
)


class Bystander:
    """A client that has nothing to do with the items that expire. `latencies_ms` has those of each phase."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._requests = (
            (set_request(b"other", b"x" * ITEM_BYTES), b"STORED\r\n"),
            (b"get other\r\n", b"VALUE other 0 %d\r\n%b\r\nEND\r\n" % (ITEM_BYTES, b"x" * ITEM_BYTES)),
        )
        self.latencies_ms = {phase: array("d") for phase in PHASES}

    def work(self, phase: str, is_over: Callable[[], bool]) -> None:
        """Set and get until that is so."""
        latencies_ms = self.latencies_ms[phase]
        while not is_over():
            for request, reply in self._requests:
                began = time.perf_counter()
                self._client.ask(request, reply)
                latencies_ms.append((time.perf_counter() - began) * 1000)

    def count_as(self, phase: str, noted: str) -> None:
        """What was noted so far of a later phase belongs to this one."""
        self.latencies_ms[phase].extend(self.latencies_ms[noted])
        self.latencies_ms[noted] = array("d")

    def figures(self, phase: str, queue: bytes) -> Mapping[bytes, int]:
        """What the server says of a queue; nothing if there is none."""
        began = time.perf_counter()
        self._client.send(b"dump_stats %b\r\n" % queue)
        lines = []
        while (line := self._client.line()) != b"END\r\n":
            lines.append(line)
        self.latencies_ms[phase].append((time.perf_counter() - began) * 1000)
        figures = (line.strip().partition(b"=") for line in lines)
        return {name: int(value) for name, equals, value in figures if equals}


class Departure:
    """Watches how the items leave, and when they have."""

    def __init__(self, bystander: Bystander, items: int) -> None:
        self._bystander = bystander
        self._items = items
        self._look_at = self._give_up_at = 0.0
        self._began_at = self._ended_at = time.perf_counter()

    def is_over(self) -> bool:
        """Whether all have gone. Asks the server, but not each time."""
        now = time.perf_counter()
        if now < self._look_at:
            return False
        self._give_up_at = self._give_up_at or now + PATIENCE_S
        if now > self._give_up_at:
            raise TimeoutError("the items do not leave")
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
        """How fast they left, from when the first did."""
        return self._items / (self._ended_at - self._began_at)


class Run(NamedTuple):
    """What came out once."""

    items_per_s: float
    latencies_ms: Mapping[str, array[float]]


def run(case: Case, sizes: Sizes, seed: int) -> Run:
    """Have the items of a new journal expire once."""
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
                    raise ValueError("the journal was not as it was made")
                return _watch(bystander, asking, case, sizes, expiry_s)
            lead_s *= 2
    raise TimeoutError("the server needs too long to start")


def _is_serving(server: Server) -> bool:
    return is_serving_in(server.logged())


def _watch(bystander: Bystander, asking: Client, case: Case, sizes: Sizes, expiry_s: float) -> Run:
    bystander.work(BEFORE, lambda: time.time() > expiry_s + 0.001)  # times are stored in whole milliseconds
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
        raise ValueError("not every item has moved")
    return Run(departure.items_per_s, bystander.latencies_ms)


def measure(results: Results, sizes: Sizes, seed: int) -> None:
    """All cases in turn, several times."""
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
    """Raise `GoalMissed` if a request took too long that came when the items left, or just after."""
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
