"""The definitions of all figures of a server and its queues: name, kind, help text and value.

`stats`, the admin port and its metrics use this table, so they agree.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from kestrel.compiled import BUILD
from kestrel.errors import KestrelError
from kestrel.escaping import show_names
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.routing import Alias

Stat = tuple[str, object]


class StatKind(Enum):
    """The way in which a figure changes."""

    COUNTER = "counter"
    """It only grows, since the server started or the queue was opened."""
    GAUGE = "gauge"
    """It goes up and down."""
    LABEL = "label"
    """It is not a number."""


_Of = TypeVar("_Of")


class StatDefinition(NamedTuple, Generic[_Of]):
    """The definition of one figure. `value` returns its value, or None if there is none."""

    name: str
    kind: StatKind
    help: str
    value: Callable[[_Of], object]


SUMMED_QUEUES_PER_STEP: Final = 64
"""Queues that are summed up in one step."""


class QueueSnapshot:
    """The figures of a queue at one time."""

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
        """The figures of the queue's storage, collected when they are first needed."""
        if self._journal is None:
            self._journal = self.store.stats
        return self._journal


class ServerSnapshot:
    """The figures of the server at one time. Sums over all queues are complete when `gather` has ended."""

    def __init__(self, manager: QueueManager, version: str, uptime_s: int) -> None:
        self.manager = manager
        self.counters = manager.counters
        self.version = version
        self.uptime_s = uptime_s
        self.queues = self.items = self.bytes = 0
        self._max_memory_bytes = 0

    def gather(self) -> Iterator[None]:
        """Sum up the queues, and reopen failed ones. Yield after every `SUMMED_QUEUES_PER_STEP` queues."""
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
        """Memory that all queues together may use, as a part of the machine's memory."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return f"{self._max_memory_bytes / memory:.3f}"


_COUNTER, _GAUGE, _LABEL = StatKind.COUNTER, StatKind.GAUGE, StatKind.LABEL

SERVER_STAT_DEFINITIONS: Final[tuple[StatDefinition[ServerSnapshot], ...]] = (
    StatDefinition("uptime", _GAUGE, "seconds since the start", lambda of: of.uptime_s),
    StatDefinition(
        "time", _GAUGE, "the server's clock, seconds since the epoch", lambda of: of.manager.now_ms() // 1000
    ),
    StatDefinition("version", _LABEL, "the server's version", lambda of: of.version),
    StatDefinition("curr_items", _GAUGE, "items in all queues", lambda of: of.items),
    StatDefinition("total_items", _COUNTER, "items put, counted once per queue", lambda of: of.counters.total_items),
    StatDefinition("bytes", _GAUGE, "bytes of the items in all queues", lambda of: of.bytes),
    StatDefinition(
        "reserved_memory_ratio",
        _GAUGE,
        "part of the machine's memory that all queues may use (maxMemorySize)",
        lambda of: of.reserved_memory_ratio,
    ),
    StatDefinition("curr_connections", _GAUGE, "connected clients", lambda of: of.counters.curr_connections),
    StatDefinition(
        "total_connections", _COUNTER, "connections since the start", lambda of: of.counters.total_connections
    ),
    StatDefinition("cmd_get", _COUNTER, "requests for items", lambda of: of.counters.cmd_get),
    StatDefinition("cmd_set", _COUNTER, "items that clients tried to put", lambda of: of.counters.cmd_set),
    StatDefinition("cmd_peek", _COUNTER, "peek requests", lambda of: of.counters.cmd_peek),
    StatDefinition("get_hits", _COUNTER, "items given to clients", lambda of: of.counters.get_hits),
    StatDefinition("get_misses", _COUNTER, "requests that found no item", lambda of: of.counters.get_misses),
    StatDefinition("bytes_read", _COUNTER, "bytes from clients", lambda of: of.counters.bytes_read),
    StatDefinition("bytes_written", _COUNTER, "bytes to clients", lambda of: of.counters.bytes_written),
    StatDefinition("queue_creates", _COUNTER, "created queues", lambda of: of.counters.queue_creates),
    StatDefinition("queue_deletes", _COUNTER, "deleted queues", lambda of: of.counters.queue_deletes),
    StatDefinition("queue_expires", _COUNTER, "queues deleted by maxQueueAge", lambda of: of.counters.queue_expires),
    StatDefinition(
        "rejected_connections",
        _COUNTER,
        "refused connections (maxConnections)",
        lambda of: of.counters.rejected_connections,
    ),
    StatDefinition(
        "foreign_requests",
        _COUNTER,
        "refused requests of other protocols (HTTP, TLS)",
        lambda of: of.counters.foreign_requests,
    ),
    StatDefinition("build", _LABEL, "compiled or pure Python", lambda of: BUILD),
)

QUEUE_STAT_DEFINITIONS: Final[tuple[StatDefinition[QueueSnapshot], ...]] = (
    StatDefinition("items", _GAUGE, "items in the queue", lambda of: of.store.items),
    StatDefinition("bytes", _GAUGE, "bytes of the items in the queue", lambda of: of.store.bytes),
    StatDefinition(
        "total_items",
        _COUNTER,
        "items put, including those loaded at the start",
        lambda of: of.counters.total_items,
    ),
    StatDefinition("logsize", _GAUGE, "bytes of the current journal file", lambda of: of.journal["logsize"]),
    StatDefinition("expired_items", _COUNTER, "expired items", lambda of: of.counters.expired_items),
    StatDefinition("mem_items", _GAUGE, "items in memory", lambda of: of.store.mem_items),
    StatDefinition("mem_bytes", _GAUGE, "bytes of the items in memory", lambda of: of.store.mem_bytes),
    StatDefinition("age", _GAUGE, "old name of age_msec", lambda of: of.age_ms),
    StatDefinition("discarded", _COUNTER, "items discarded for newer ones", lambda of: of.counters.discarded),
    StatDefinition("waiters", _GAUGE, "clients waiting for an item", lambda of: len(of.queue.waiters)),
    StatDefinition("open_transactions", _GAUGE, "open reads", lambda of: of.store.open_reads),
    StatDefinition("transactions", _COUNTER, "opened reads", lambda of: of.counters.transactions),
    StatDefinition(
        "canceled_transactions",
        _COUNTER,
        "aborted reads",
        lambda of: of.counters.canceled_transactions,
    ),
    StatDefinition("total_flushes", _COUNTER, "flushes", lambda of: of.counters.total_flushes),
    StatDefinition(
        "journal_rewrites",
        _COUNTER,
        "rewrites of the journal",
        lambda of: of.journal["journal_rewrites"],
    ),
    StatDefinition(
        "journal_rotations",
        _COUNTER,
        "rotations of the journal to a new file",
        lambda of: of.journal["journal_rotations"],
    ),
    StatDefinition(
        "children", _LABEL, "the queue's children", lambda of: show_names(of.children) if of.children else None
    ),
    StatDefinition("age_msec", _GAUGE, "last wait: how long the last item taken had waited, ms", lambda of: of.age_ms),
    StatDefinition(
        "create_time",
        _GAUGE,
        "time when the queue was opened, milliseconds since the epoch",
        lambda of: of.counters.create_time_ms,
    ),
    StatDefinition("moved_items", _COUNTER, "items moved to other queues", lambda of: of.queue.moves.moved),
    StatDefinition("refused_moves", _COUNTER, "items that other queues refused", lambda of: of.queue.moves.refused),
    StatDefinition("oldest_age_msec", _GAUGE, "age of the oldest item, ms", lambda of: of.queue.oldest_age_ms),
)

TRAFFIC_STAT_DEFINITIONS: Final[tuple[StatDefinition[QueueSnapshot], ...]] = (
    StatDefinition("put_items", _COUNTER, "items put since the queue was opened", lambda of: of.histograms.puts),
    StatDefinition("put_bytes", _COUNTER, "bytes of the items put", lambda of: of.histograms.request_size.sum),
    StatDefinition("get_items_hit", _COUNTER, "items taken", lambda of: of.histograms.hits),
    StatDefinition("get_items_miss", _COUNTER, "requests that found no item", lambda of: of.histograms.misses),
)
"""Traffic since a queue was opened. As in Kestrel, `stats` does not have it: clients take a queue with `put_items`
there for an alias.
"""

COMMON_STORAGE_STATS: Final = frozenset({"logsize", "journal_rewrites", "journal_rotations"})
"""The figures that every storage has. A storage's own figures follow them."""


def server_stats(snapshot: ServerSnapshot) -> list[Stat]:
    """Return the server's figures with their values."""
    return [(figure.name, figure.value(snapshot)) for figure in SERVER_STAT_DEFINITIONS]


def queue_stats(snapshot: QueueSnapshot) -> list[Stat]:
    """Return a queue's figures with their values: first the common ones, then those of its storage."""
    told: list[Stat] = []
    for figure in QUEUE_STAT_DEFINITIONS:
        value = figure.value(snapshot)
        if value is not None:
            told.append((figure.name, value))
    return told + list(storage_stats(snapshot))


def traffic_stats(snapshot: QueueSnapshot) -> list[Stat]:
    """Return the traffic figures with their values."""
    return [(figure.name, figure.value(snapshot)) for figure in TRAFFIC_STAT_DEFINITIONS]


def storage_stats(snapshot: QueueSnapshot) -> Iterator[tuple[str, int]]:
    """Return the figures that only this queue's storage has."""
    return ((name, value) for name, value in snapshot.journal.items() if name not in COMMON_STORAGE_STATS)


def alias_stats(alias: Alias) -> list[Stat]:
    """Return an alias's figures: the puts to it, and its destinations."""
    children = show_names(alias.destinations)
    return [("put_items", alias.put_items), ("put_bytes", alias.put_bytes), ("children", children)]


CHILDREN_PER_BATCH: Final = 64
"""Limit of children in one piece of a reply."""

CHILDREN_PLACEHOLDER: Final = b"/"
"""Placeholder for the list of children. No name contains a slash, and escaping adds none."""


def iter_encoded_stats(manager: QueueManager, name: bytes, encode: Callable[[list[Stat]], bytes]) -> Iterator[bytes]:
    """Yield the encoded figures of a queue or alias, in several pieces if it has many children."""
    if len(manager.children_of(name)) <= CHILDREN_PER_BATCH:
        yield encode(stats_of(manager, name))
        return
    before, _, after = encode(stats_of(manager, name, (CHILDREN_PLACEHOLDER,))).partition(CHILDREN_PLACEHOLDER)
    yield before
    comma = b""
    for children in iter_child_batches(manager, name):
        marked = encode([("children", show_names((CHILDREN_PLACEHOLDER, *children, CHILDREN_PLACEHOLDER)))])
        yield comma + marked.split(CHILDREN_PLACEHOLDER)[1].strip(b",")
        comma = b","
    yield after


def iter_child_batches(manager: QueueManager, name: bytes) -> Iterator[Sequence[bytes]]:
    """Yield the names of a queue's children in batches, in order. Children may be added and removed meanwhile."""
    last = b""
    while True:
        children = manager.children_of(name)
        place = bisect_right(children, last)
        piece = children[place : place + CHILDREN_PER_BATCH]
        if not piece:
            return
        yield piece
        last = piece[-1]


def stats_of(manager: QueueManager, name: bytes, children: Sequence[bytes] | None = None) -> list[Stat]:
    """Return the figures of a queue or alias, or an empty list if it is missing. Try to reopen a failed queue.

    `children` replaces the names of the queue's children in the figures.
    """
    alias = manager.aliases.get(name)
    if alias is not None:
        return alias_stats(alias)
    queue = manager.known(name)
    if queue is None:
        return []
    with suppress(KestrelError):
        queue.reopen()
    return queue_stats(QueueSnapshot(queue, manager.children_of(name) if children is None else children))
