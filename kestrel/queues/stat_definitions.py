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


def _counter(name: str, help: str, value: Callable[[_Of], object]) -> StatDefinition[_Of]:
    return StatDefinition(name, StatKind.COUNTER, help, value)


def _gauge(name: str, help: str, value: Callable[[_Of], object]) -> StatDefinition[_Of]:
    return StatDefinition(name, StatKind.GAUGE, help, value)


def _label(name: str, help: str, value: Callable[[_Of], object]) -> StatDefinition[_Of]:
    return StatDefinition(name, StatKind.LABEL, help, value)


SERVER_STAT_DEFINITIONS: Final[tuple[StatDefinition[ServerSnapshot], ...]] = (
    _gauge("uptime", "seconds since the start", lambda of: of.uptime_s),
    _gauge("time", "the server's clock, seconds since the epoch", lambda of: of.manager.now_ms() // 1000),
    _label("version", "the server's version", lambda of: of.version),
    _gauge("curr_items", "items in all queues", lambda of: of.items),
    _counter("total_items", "items put, counted once per queue", lambda of: of.counters.total_items),
    _gauge("bytes", "bytes of the items in all queues", lambda of: of.bytes),
    _gauge(
        "reserved_memory_ratio",
        "part of the machine's memory that all queues may use (maxMemorySize)",
        lambda of: of.reserved_memory_ratio,
    ),
    _gauge("curr_connections", "connected clients", lambda of: of.counters.curr_connections),
    _counter("total_connections", "connections since the start", lambda of: of.counters.total_connections),
    _counter("cmd_get", "requests for items", lambda of: of.counters.cmd_get),
    _counter("cmd_set", "items that clients tried to put", lambda of: of.counters.cmd_set),
    _counter("cmd_peek", "peek requests", lambda of: of.counters.cmd_peek),
    _counter("get_hits", "items given to clients", lambda of: of.counters.get_hits),
    _counter("get_misses", "requests that found no item", lambda of: of.counters.get_misses),
    _counter("bytes_read", "bytes from clients", lambda of: of.counters.bytes_read),
    _counter("bytes_written", "bytes to clients", lambda of: of.counters.bytes_written),
    _counter("queue_creates", "created queues", lambda of: of.counters.queue_creates),
    _counter("queue_deletes", "deleted queues", lambda of: of.counters.queue_deletes),
    _counter("queue_expires", "queues deleted by maxQueueAge", lambda of: of.counters.queue_expires),
    _counter(
        "rejected_connections", "refused connections (maxConnections)", lambda of: of.counters.rejected_connections
    ),
    _counter(
        "foreign_requests", "refused requests of other protocols (HTTP, TLS)", lambda of: of.counters.foreign_requests
    ),
    _label("build", "compiled or pure Python", lambda of: BUILD),
    _gauge(
        "delayed_items",
        "items of queues and aliases that become visible later (delay)",
        lambda of: of.manager.delayed.items,
    ),
)

QUEUE_STAT_DEFINITIONS: Final[tuple[StatDefinition[QueueSnapshot], ...]] = (
    _gauge("items", "items in the queue", lambda of: of.store.items),
    _gauge("bytes", "bytes of the items in the queue", lambda of: of.store.bytes),
    _counter("total_items", "items put, including those loaded at the start", lambda of: of.counters.total_items),
    _gauge("logsize", "bytes of the current journal file", lambda of: of.journal["logsize"]),
    _counter("expired_items", "expired items", lambda of: of.counters.expired_items),
    _gauge("mem_items", "items in memory", lambda of: of.store.mem_items),
    _gauge("mem_bytes", "bytes of the items in memory", lambda of: of.store.mem_bytes),
    _gauge("age", "old name of age_msec", lambda of: of.age_ms),
    _counter("discarded", "items discarded for newer ones", lambda of: of.counters.discarded),
    _gauge("waiters", "clients waiting for an item", lambda of: len(of.queue.waiters)),
    _gauge("open_transactions", "open reads", lambda of: of.store.open_reads),
    _counter("transactions", "opened reads", lambda of: of.counters.transactions),
    _counter("canceled_transactions", "aborted reads", lambda of: of.counters.canceled_transactions),
    _counter("total_flushes", "flushes", lambda of: of.counters.total_flushes),
    _counter("journal_rewrites", "rewrites of the journal", lambda of: of.journal["journal_rewrites"]),
    _counter("journal_rotations", "rotations of the journal to a new file", lambda of: of.journal["journal_rotations"]),
    _label("children", "the queue's children", lambda of: show_names(of.children) if of.children else None),
    _gauge("age_msec", "last wait: how long the last item taken had waited, ms", lambda of: of.age_ms),
    _gauge(
        "create_time",
        "time when the queue was opened, milliseconds since the epoch",
        lambda of: of.counters.create_time_ms,
    ),
    _counter("moved_items", "items moved to other queues", lambda of: of.queue.moves.moved),
    _counter("refused_moves", "items that other queues refused", lambda of: of.queue.moves.refused),
    _gauge("oldest_age_msec", "age of the oldest item, ms", lambda of: of.queue.oldest_age_ms),
    _gauge("delayed_items", "items that become visible later (delay)", lambda of: of.queue.delayed_items),
)

TRAFFIC_STAT_DEFINITIONS: Final[tuple[StatDefinition[QueueSnapshot], ...]] = (
    _counter("put_items", "items put since the queue was opened", lambda of: of.histograms.puts),
    _counter("put_bytes", "bytes of the items put", lambda of: of.histograms.request_size.sum),
    _counter("get_items_hit", "items taken", lambda of: of.histograms.hits),
    _counter("get_items_miss", "requests that found no item", lambda of: of.histograms.misses),
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
