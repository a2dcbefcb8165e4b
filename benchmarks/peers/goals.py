"""The performance goals, and whether the results reach them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.harness import MB, spread
from benchmarks.peers import cases
from benchmarks.peers.interleaved_runs import ITEMS, USER_TIME, Measured
from benchmarks.peers.servers import BEANSTALKD, COMPILED, KESTREL, KESTREL_PURE, PURE, REDIS, SYNC_EACH

OURS: Final = (KESTREL.name, KESTREL_PURE.name)
"""Both builds of kestrel. The pure one is measured separately if the installed one is compiled."""

WITHOUT_SYNC: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    BEANSTALKD.name: {COMPILED: (2.2, 9.0), PURE: (0.9, 2.0)},
    REDIS.name: {COMPILED: (0.95, 1.0)},
}
"""The required ratio of items per second to that server, with 1 and with 16 requests in flight."""
USER_TIME_TO_REDIS: Final = (1.3, 1.2)
"""The allowed ratio of user time for an item to Redis, with 50 connections, 1 and 16 requests in flight, compiled."""
LARGER_ITEMS_TO_REDIS: Final = 0.8
"""The required ratio of items per second to Redis, for 1 KiB with 16 requests in flight, and for 1 MiB, compiled."""
WITH_SYNC: Final = 8.0
"""The required ratio of items per second to kestrel without group commit, and to beanstalkd."""
WITH_BACKLOG: Final = 0.8
MEMORY_OVER_LIMIT: Final = 100 * MB
"""The memory that a server may use beyond maxMemorySize, in bytes."""


class Goal(NamedTuple):
    """A goal and the measured value."""

    what: str
    wanted: float
    seen: float
    is_least: bool = True
    """True if `wanted` is a minimum, False if it is a maximum."""

    @property
    def is_seen(self) -> bool:
        """True if the goal is reached."""
        return self.seen >= self.wanted if self.is_least else self.seen <= self.wanted

    def line(self) -> str:
        """Return the goal as a line of text."""
        bound = "at least" if self.is_least else "at most"
        verdict = "met" if self.is_seen else "MISSED"
        return f"{verdict:6}  {self.what}: {self.seen:,.2f}, {bound} {self.wanted:,.2f}"


def goals(measured: Sequence[Measured], build: str) -> list[Goal]:
    """Return the goals that these results can decide. `build` is the build that the server reports."""
    by_size = _by_size(measured) if build == COMPILED else ()
    return [*_without_sync(measured, build), *by_size, *_with_sync(measured), *_with_backlog(measured)]


def _without_sync(measured: Sequence[Measured], build: str) -> Iterator[Goal]:
    for each in measured:
        load = each.case.load
        is_wide = load.pipeline > 1
        if each.case.axis != (cases.PIPELINE if is_wide else cases.CONNECTIONS) or not 10 <= load.connections <= 500:
            continue
        for ours, its_build in zip(OURS, (build, PURE), strict=True):
            for peer, wanted in WITHOUT_SYNC.items():
                ratio = each.ratio(ours, peer, ITEMS)
                if ratio is not None and its_build in wanted:
                    what = f"{ours} ({its_build}) to {peer}, {load.connections} connections, {load.pipeline} in flight"
                    yield Goal(what, wanted[its_build][is_wide], ratio.median)
        user_time = each.ratio(KESTREL.name, REDIS.name, USER_TIME)
        if user_time is not None and build == COMPILED and load.connections == cases.BASE_LOAD.connections:
            what = f"user time of an item, kestrel to redis, {load.connections} connections, {load.pipeline} in flight"
            yield Goal(what, USER_TIME_TO_REDIS[is_wide], user_time.median, is_least=False)


def _by_size(measured: Sequence[Measured]) -> Iterator[Goal]:
    for each in measured:
        is_larger = each.case.load.pipeline > 1 or each.case.load.connections != cases.BASE_LOAD.connections
        ratio = each.ratio(KESTREL.name, REDIS.name, ITEMS)
        if each.case.axis == cases.SIZE and is_larger and ratio is not None:
            yield Goal(f"kestrel to redis, items of {each.case.point}", LARGER_ITEMS_TO_REDIS, ratio.median)


def _with_sync(measured: Sequence[Measured]) -> Iterator[Goal]:
    for each in measured:
        if each.case.has_no_group_commit:
            # The server without group commit is pure. A comparison with the compiled build would also measure the
            # extension.
            like_it = KESTREL_PURE.name if KESTREL_PURE.name in each.names() else KESTREL.name
            for ours, other in ((like_it, SYNC_EACH.name), *((ours, BEANSTALKD.name) for ours in OURS)):
                ratio = each.ratio(ours, other, ITEMS)
                if ratio is not None:
                    yield Goal(f"a sync before each reply, {ours} to {other}", WITH_SYNC, ratio.median)


def _with_backlog(measured: Sequence[Measured]) -> Iterator[Goal]:
    by_backlog = {each.case.backlog: each for each in measured if each.case.axis == cases.BACKLOG}
    for backlog, each in by_backlog.items():
        if backlog and 0 in by_backlog:
            for name in OURS:
                if name in each.names():
                    pairs = zip(each.rounds, by_backlog[0].rounds, strict=True)
                    ratios = [here[name].items_per_s / there[name].items_per_s for here, there in pairs]
                    what = f"{name}, a backlog of {backlog:,} to an empty queue"
                    yield Goal(what, WITH_BACKLOG, spread(ratios).median)


def memory_goal(server: str, items: int, memory_bytes: int, limit_bytes: int) -> Goal:
    """Return the goal for the resident memory in MB of a server that holds more items of 1 KiB than maxMemorySize."""
    most = (limit_bytes + MEMORY_OVER_LIMIT) / MB
    what = f"{server}, resident memory behind {items:,} items of 1 KiB, in MB"
    return Goal(what, most, memory_bytes / MB, is_least=False)
