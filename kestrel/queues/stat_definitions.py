"""Every figure that a server tells of itself and of its queues: what it is called, what it means, where it is.

One table, from which `stats`, the admin port's calls and its metrics take what they show: so they agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from kestrel.compiled import BUILD
from kestrel.errors import KestrelError
from kestrel.escaping import show_names
from kestrel.queues.aliases import Alias
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue

Stat = tuple[str, object]


class StatKind(Enum):
    """How a figure changes."""

    COUNTER = "counter"
    """It only grows, from the start of the server, or from when the queue was opened."""
    GAUGE = "gauge"
    """It goes up and down."""
    LABEL = "label"
    """It is no number."""


_Of = TypeVar("_Of")


class StatDefinition(NamedTuple, Generic[_Of]):
    """One figure. `value` is asked for it; None where there is none."""

    name: str
    kind: StatKind
    help: str
    value: Callable[[_Of], object]


SUMMED_QUEUES_PER_STEP: Final = 64
"""Queues that are summed up in one step."""


class QueueSnapshot:
    """A queue as it is now."""

    __slots__ = ("_journal", "age_ms", "children", "counters", "histograms", "queue", "store")

    def __init__(self, queue: Queue, children: Sequence[bytes] = ()) -> None:
        self.queue = queue
        self.store = queue.store
        self.counters = queue.counters
        self.histograms = queue.histograms
        self._journal: Mapping[str, int] | None = None
        self.children = children
        self.age_ms = queue.counters.age_ms if queue.store.items else 0

    @property
    def journal(self) -> Mapping[str, int]:
        """The figures of its storage, gathered when they are first needed."""
        if self._journal is None:
            self._journal = self.store.stats
        return self._journal


class ServerSnapshot:
    """The server as it is now. What is summed up over all its queues is there when `gather` has ended."""

    def __init__(self, manager: QueueManager, version: str, uptime_s: int) -> None:
        self.manager = manager
        self.counters = manager.counters
        self.version = version
        self.uptime_s = uptime_s
        self.queues = self.items = self.bytes = 0
        self._max_memory_bytes = 0

    def gather(self) -> Iterator[None]:
        """Sum up the queues step by step, and open again those whose storage has failed."""
        for queue in self.manager.queues_in_order():
            with suppress(KestrelError):
                queue.reopen()
            self.queues += 1
            self.items += queue.store.items
            self.bytes += queue.store.bytes
            self._max_memory_bytes += queue.settings.max_memory_size_bytes
            if not self.queues % SUMMED_QUEUES_PER_STEP:
                yield None

    @property
    def reserved_memory_ratio(self) -> str:
        """How much of the machine's memory the queues may fill, in all."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return f"{self._max_memory_bytes / memory:.3f}"


_COUNTER, _GAUGE, _LABEL = StatKind.COUNTER, StatKind.GAUGE, StatKind.LABEL

SERVER_STAT_DEFINITIONS: Final[tuple[StatDefinition[ServerSnapshot], ...]] = (
    StatDefinition("uptime", _GAUGE, "seconds since the start", lambda of: of.uptime_s),
    StatDefinition(
        "time", _GAUGE, "the server's clock, seconds since the epoch", lambda of: of.manager.now_ms() // 1000
    ),
    StatDefinition("version", _LABEL, "the release", lambda of: of.version),
    StatDefinition("curr_items", _GAUGE, "items in all queues", lambda of: of.items),
    StatDefinition(
        "total_items", _COUNTER, "items that were put, one for each queue", lambda of: of.counters.total_items
    ),
    StatDefinition("bytes", _GAUGE, "bytes of the items in all queues", lambda of: of.bytes),
    StatDefinition(
        "reserved_memory_ratio",
        _GAUGE,
        "what the queues may take of the machine's memory, in all (maxMemorySize)",
        lambda of: of.reserved_memory_ratio,
    ),
    StatDefinition("curr_connections", _GAUGE, "clients that are connected", lambda of: of.counters.curr_connections),
    StatDefinition(
        "total_connections", _COUNTER, "clients that have connected", lambda of: of.counters.total_connections
    ),
    StatDefinition("cmd_get", _COUNTER, "requests for items", lambda of: of.counters.cmd_get),
    StatDefinition("cmd_set", _COUNTER, "items that clients asked to put", lambda of: of.counters.cmd_set),
    StatDefinition("cmd_peek", _COUNTER, "requests to look at an item", lambda of: of.counters.cmd_peek),
    StatDefinition("get_hits", _COUNTER, "items that clients were given", lambda of: of.counters.get_hits),
    StatDefinition("get_misses", _COUNTER, "requests for which there was no item", lambda of: of.counters.get_misses),
    StatDefinition("bytes_read", _COUNTER, "bytes from clients", lambda of: of.counters.bytes_read),
    StatDefinition("bytes_written", _COUNTER, "bytes to clients", lambda of: of.counters.bytes_written),
    StatDefinition("queue_creates", _COUNTER, "queues that came into being", lambda of: of.counters.queue_creates),
    StatDefinition("queue_deletes", _COUNTER, "queues that were deleted", lambda of: of.counters.queue_deletes),
    StatDefinition(
        "queue_expires", _COUNTER, "those of them that maxQueueAge deleted", lambda of: of.counters.queue_expires
    ),
    StatDefinition(
        "rejected_connections",
        _COUNTER,
        "clients that were turned away (maxConnections)",
        lambda of: of.counters.rejected_connections,
    ),
    StatDefinition(
        "foreign_requests",
        _COUNTER,
        "requests of other protocols (HTTP, TLS) that were refused",
        lambda of: of.counters.foreign_requests,
    ),
    StatDefinition("build", _LABEL, "compiled, or pure Python", lambda of: BUILD),
)

QUEUE_STAT_DEFINITIONS: Final[tuple[StatDefinition[QueueSnapshot], ...]] = (
    StatDefinition("items", _GAUGE, "items in the queue", lambda of: of.store.items),
    StatDefinition("bytes", _GAUGE, "their bytes", lambda of: of.store.bytes),
    StatDefinition(
        "total_items",
        _COUNTER,
        "items that were put, those in it at the start among them",
        lambda of: of.counters.total_items,
    ),
    StatDefinition("logsize", _GAUGE, "bytes of the file that is written to", lambda of: of.journal["logsize"]),
    StatDefinition("expired_items", _COUNTER, "items that have expired", lambda of: of.counters.expired_items),
    StatDefinition("mem_items", _GAUGE, "items that are in memory", lambda of: of.store.mem_items),
    StatDefinition("mem_bytes", _GAUGE, "their bytes", lambda of: of.store.mem_bytes),
    StatDefinition("age", _GAUGE, "age_msec, by its old name", lambda of: of.age_ms),
    StatDefinition("discarded", _COUNTER, "items that gave way to newer ones", lambda of: of.counters.discarded),
    StatDefinition("waiters", _GAUGE, "clients that wait for an item", lambda of: len(of.queue.waiters)),
    StatDefinition("open_transactions", _GAUGE, "open reads", lambda of: of.store.open_reads),
    StatDefinition("transactions", _COUNTER, "reads that were opened", lambda of: of.counters.transactions),
    StatDefinition(
        "canceled_transactions",
        _COUNTER,
        "those of them that were aborted",
        lambda of: of.counters.canceled_transactions,
    ),
    StatDefinition("total_flushes", _COUNTER, "how often it was flushed", lambda of: of.counters.total_flushes),
    StatDefinition(
        "journal_rewrites",
        _COUNTER,
        "how often its journal was written anew",
        lambda of: of.journal["journal_rewrites"],
    ),
    StatDefinition(
        "journal_rotations",
        _COUNTER,
        "how often its journal went over to a new file",
        lambda of: of.journal["journal_rotations"],
    ),
    StatDefinition("children", _LABEL, "its children", lambda of: show_names(of.children) if of.children else None),
    StatDefinition(
        "age_msec", _GAUGE, "how long the last item that was taken had waited, milliseconds", lambda of: of.age_ms
    ),
    StatDefinition(
        "create_time",
        _GAUGE,
        "when it was opened, milliseconds since the epoch",
        lambda of: of.counters.create_time_ms,
    ),
    StatDefinition("moved_items", _COUNTER, "items that have moved to other queues", lambda of: of.queue.moves.moved),
    StatDefinition(
        "refused_moves", _COUNTER, "items that other queues had no room for", lambda of: of.queue.moves.refused
    ),
)

TRAFFIC_STAT_DEFINITIONS: Final[tuple[StatDefinition[QueueSnapshot], ...]] = (
    StatDefinition("put_items", _COUNTER, "items that were put since it was opened", lambda of: of.histograms.puts),
    StatDefinition("put_bytes", _COUNTER, "their bytes", lambda of: of.histograms.request_size.sum),
    StatDefinition("get_items_hit", _COUNTER, "items that were taken", lambda of: of.histograms.hits),
    StatDefinition("get_items_miss", _COUNTER, "requests for which there was no item", lambda of: of.histograms.misses),
)
"""What came and went since a queue was opened. `stats` does not tell it, nor did Kestrel's: who finds `put_items` there
takes the queue for an alias."""

COMMON_STORAGE_STATS: Final = frozenset({"logsize", "journal_rewrites", "journal_rotations"})
"""The figures that every storage tells, as Kestrel's did; its own come last."""


def server_stats(snapshot: ServerSnapshot) -> list[Stat]:
    """The server's figures with their values."""
    return [(figure.name, figure.value(snapshot)) for figure in SERVER_STAT_DEFINITIONS]


def queue_stats(snapshot: QueueSnapshot) -> list[Stat]:
    """A queue's figures with their values: those of every storage, then this one's own."""
    told: list[Stat] = []
    for figure in QUEUE_STAT_DEFINITIONS:
        value = figure.value(snapshot)
        if value is not None:
            told.append((figure.name, value))
    return told + list(storage_stats(snapshot))


def traffic_stats(snapshot: QueueSnapshot) -> list[Stat]:
    """What came and went, with its values."""
    return [(figure.name, figure.value(snapshot)) for figure in TRAFFIC_STAT_DEFINITIONS]


def storage_stats(snapshot: QueueSnapshot) -> Iterator[tuple[str, int]]:
    """What the storage of a queue tells that not every storage does."""
    return ((name, value) for name, value in snapshot.journal.items() if name not in COMMON_STORAGE_STATS)


def alias_stats(alias: Alias) -> list[Stat]:
    """An alias's figures: what was put to it, and where that goes."""
    children = show_names(alias.destinations)
    return [("put_items", alias.put_items), ("put_bytes", alias.put_bytes), ("children", children)]
