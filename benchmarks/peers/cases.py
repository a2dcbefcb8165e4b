"""The cases. Each varies one parameter from a base case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks.peers.generator import Load
from benchmarks.peers.servers import DEFAULT, EACH_REPLY, EVERY_100_MS, NEVER, Setting

CONNECTIONS: Final = "connections"
SIZE: Final = "size"
PIPELINE: Final = "pipeline"
QUEUES: Final = "queues"
WORKLOAD: Final = "workload"
SYNC: Final = "sync"
BACKLOG: Final = "backlog"

BASE_LOAD: Final = Load("memcache", connections=50, size=64, pipeline=1, queues=1)


class Case(NamedTuple):
    """One point on an axis: the same work for all servers."""

    axis: str
    point: str
    """A short label of the point on the axis."""
    load: Load = BASE_LOAD
    setting: Setting = DEFAULT
    backlog: int = 0
    """Items in the queues beforehand."""
    has_no_group_commit: bool = False
    """True if kestrel without group commit takes part."""
    longer: int = 1
    """The duration, relative to other cases. With a sync per reply, a round of the work takes a second."""

    @property
    def name(self) -> str:
        """The unique name of the case."""
        return f"{self.axis} {self.point}"

    @property
    def work(self) -> tuple[object, ...]:
        """The work of the case, independent of axis and point."""
        return self[2:]

    @property
    def servers_for(self) -> tuple[object, ...]:
        """Cases with equal values can share servers, one after the other."""
        # The children remain after the case.
        children = self.load.children if self.load.workload == "fanout" else 0
        return self.setting, self.backlog, children


class Sizes(NamedTuple):
    """The amount of work."""

    connections: Sequence[int]
    wide_pipelines: Sequence[int]
    """Numbers of connections with many requests in flight."""
    large_connections: Sequence[int]
    """Numbers of connections with items of 1 MiB."""
    children: Sequence[int]
    backlogs: Sequence[int]
    rounds: int
    seconds: float
    """Seconds of work for each server in a round."""
    warm_s: float
    """Seconds of work before the first round."""
    memory_items: int
    """Items of 1 KiB in the memory comparison."""
    memory_mib: int
    """maxMemorySize in the memory comparison."""


FULL: Final = Sizes(
    connections=(1, 10, 50, 500, 5000),
    wide_pipelines=(10, 50, 500),
    large_connections=(1, 8),
    children=(1, 3, 10),
    backlogs=(0, 100_000, 1_000_000),
    rounds=5,
    seconds=1.0,
    warm_s=0.5,
    memory_items=1_000_000,
    memory_mib=128,
)
QUICK: Final = Sizes((1, 10, 50, 500), (10, 50, 500), (1, 8), (1, 10), (0, 100_000), 3, 0.2, 0.1, 100_000, 16)
SHORT: Final = Sizes((10, 50), (50,), (1,), (1,), (0, 1_000), 1, 0.1, 0.05, 5_000, 1)


def cases(sizes: Sizes, seed: int = 1) -> list[Case]:
    """Return all cases. The seed determines the bytes of the items."""
    base = BASE_LOAD._replace(seed=seed)
    own_queues = base._replace(queues=None)

    def all_cases() -> Iterator[Case]:
        for count in sizes.connections:
            yield Case(CONNECTIONS, f"{count:,}", base._replace(connections=count))
        yield Case(SIZE, "64 B", base)
        yield Case(SIZE, "1 KiB", base._replace(size=1024))
        yield Case(SIZE, "1 KiB, 16 in flight", base._replace(size=1024, pipeline=16))
        for count in sizes.large_connections:
            yield Case(SIZE, f"1 MiB, {count} conn.", base._replace(size=1 << 20, connections=count))
        yield Case(PIPELINE, "1", base)
        for count in sizes.wide_pipelines:
            point = "16" if count == base.connections else f"16, {count} conn."
            yield Case(PIPELINE, point, base._replace(connections=count, pipeline=16))
        yield Case(QUEUES, "1", base)
        yield Case(QUEUES, "own", own_queues)
        yield Case(WORKLOAD, "set+get", own_queues)
        yield Case(WORKLOAD, "reliable", own_queues._replace(workload="reliable"))
        yield Case(WORKLOAD, "waiting", own_queues._replace(workload="waiting"))
        for count in sizes.children:
            yield Case(WORKLOAD, f"fanout {count}", own_queues._replace(workload="fanout", children=count))
        yield Case(SYNC, NEVER, base)
        yield Case(SYNC, EVERY_100_MS, base, Setting(EVERY_100_MS))
        yield Case(SYNC, EACH_REPLY, base, Setting(EACH_REPLY), has_no_group_commit=True, longer=4)
        yield Case(SYNC, f"{EACH_REPLY}, own queues", own_queues, Setting(EACH_REPLY), longer=4)
        for count in sizes.backlogs:
            yield Case(BACKLOG, f"{count:,}", base._replace(is_behind=count > 0), backlog=count)

    return list(all_cases())
