"""Short runs of all servers in turn, and ratios of their results.

Other load on the machine affects all servers of a round, so the ratios are computed within each round.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.harness import RunProgress, Spread, spread
from benchmarks.peers.cases import Case, Sizes
from benchmarks.peers.generator import Figures, Generator, Load
from benchmarks.peers.servers import BEANSTALKD, CEILING, MEMCACHED, NEVER, SYNC_EACH, Program, Running

FILL_CONNECTIONS: Final = 4
FILL_PIPELINE: Final = 256

Round = Mapping[str, Figures]
"""Results by the server's name."""


ITEMS: Final = "items"
REQUESTS: Final = "requests"
ITEMS_BY_CPU: Final = "items by CPU"
USER_TIME: Final = "user time of an item"


def _figure(figures: Figures, name: str) -> float:
    if name == USER_TIME:
        return figures.server_user_s / max(1, figures.items)
    if name == ITEMS_BY_CPU:
        return figures.items / figures.server_cpu_s if figures.server_cpu_s else 0.0
    return figures.items_per_s if name == ITEMS else figures.requests_per_s


class Measured(NamedTuple):
    """The results of one case."""

    case: Case
    rounds: Sequence[Round]
    memory_bytes: Mapping[str, int]

    def names(self) -> list[str]:
        """Return the names of the servers that took part."""
        return list(self.memory_bytes)

    def median(self, server: str) -> Figures:
        """Return the medians of a server's figures over the rounds."""
        runs = [each[server] for each in self.rounds]
        return Figures(*(spread(values).median for values in zip(*runs, strict=True)))  # type: ignore[arg-type]

    def ratio(self, one: str, other: str, figure: str) -> Spread | None:
        """Return the ratio of two servers over the rounds. None if one did not take part, or if `other` has a zero."""
        if not {one, other} <= set(self.memory_bytes):
            return None
        pairs = [(_figure(each[one], figure), _figure(each[other], figure)) for each in self.rounds]
        return spread([here / there for here, there in pairs]) if all(there for _, there in pairs) else None


def takes_part(program: Program, case: Case) -> bool:
    """Return True if the server supports the work: a cache has neither queues nor a disk, beanstalkd has no fanout."""
    if program.name in (MEMCACHED.name, CEILING):
        return case.load.workload == "set-get" and not case.backlog and case.setting.sync == NEVER
    if program is SYNC_EACH:
        return case.has_no_group_commit
    return case.load.workload != "fanout" or program is not BEANSTALKD


def load_for(program: Program, case: Case, seconds: float) -> Load:
    """Return the load of a case for a server. Clients of a cache do not share a key, which they would overwrite."""
    is_cache = program.name in (MEMCACHED.name, CEILING)
    load = case.load._replace(queues=None) if is_cache else case.load
    return load._replace(seconds=seconds * case.longer)


def fill(generator: Generator, server: Running, load: Load, items: int) -> None:
    """Put that many items into the queues of the load. Do nothing if it is 0."""
    if not items:
        return
    many = load._replace(
        workload="fill", connections=FILL_CONNECTIONS, pipeline=FILL_PIPELINE, items=items, is_behind=True
    )
    server.work(generator, many)


def measure(
    generator: Generator,
    places: Mapping[Case, Sequence[Running]],
    sizes: Sizes,
    dice: random.Random,
    clock: RunProgress,
) -> list[Measured]:
    """Run the work of each case on its servers, all of them in each round, in random order."""
    pairs = [
        (case, server) for case, servers in places.items() for server in servers if takes_part(server.program, case)
    ]
    for case, server in pairs:
        server.work(generator, load_for(server.program, case, sizes.warm_s))
    rounds: dict[Case, list[Round]] = {case: [] for case in places}
    for _ in range(sizes.rounds):
        round_: dict[Case, dict[str, Figures]] = {case: {} for case in places}
        for case, server in dice.sample(pairs, len(pairs)):
            clock.show(f"{case.name}: {server.name}")
            round_[case][server.name] = server.work(generator, load_for(server.program, case, sizes.seconds))
            clock.step(case.longer)
        for case in places:
            rounds[case].append(round_[case])
    memory = {pair: pair[1].memory_bytes() for pair in pairs}
    return [
        Measured(case, rounds[case], {server.name: size for (its, server), size in memory.items() if its is case})
        for case in places
    ]
