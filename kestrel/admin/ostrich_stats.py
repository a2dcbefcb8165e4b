"""The statistics in the format of the original Kestrel's admin port: counters, gauges, labels and metrics.

Monitoring programs for the original Kestrel can read them from `stats.json` and `stats.txt`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeAlias

from attrs import field, frozen

from kestrel.admin.server_view import ServerView, add_histograms, summarize
from kestrel.escaping import show_name
from kestrel.histogram import Histogram
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.stat_definitions import (
    QUEUE_STAT_DEFINITIONS,
    SERVER_STAT_DEFINITIONS,
    TRAFFIC_STAT_DEFINITIONS,
    QueueSnapshot,
    ServerSnapshot,
    StatDefinition,
    StatKind,
)

Number = int | float

_LARGEST_LONG: Final = 2**63 - 1
_LARGEST_INT: Final = 2**31 - 1
"""Kestrel's values for "no limit" of `max_bytes` and `max_items`."""

_NAMES: Final = {"logsize": "journal_size", "curr_items": "items", "curr_connections": "connections"}
"""Names of the admin port that differ from the names in the memcache command `stats`, by the latter."""

_LEFT_OUT: Final = frozenset({"uptime", "time", "version", "build", "age", "children"})
"""Statistics that are omitted, because they are duplicates or part of other responses."""


def _named(kind: StatKind) -> dict[str, StatDefinition[QueueSnapshot]]:
    """Return the definitions of the queue statistics of one kind, sorted by their names on the admin port."""
    figures = (*QUEUE_STAT_DEFINITIONS, *TRAFFIC_STAT_DEFINITIONS)
    chosen = (figure for figure in figures if figure.kind is kind and figure.name not in _LEFT_OUT)
    return dict(sorted((_NAMES.get(figure.name, figure.name), figure) for figure in chosen))


_COUNTERS: Final = _named(StatKind.COUNTER)
_GAUGES: Final = _named(StatKind.GAUGE)

SECTIONS: Final = ("counters", "gauges", "labels", "metrics")


class QueueStatsSource(Protocol):
    """A source of the statistics of queues, read one queue and one section at a time."""

    def names(self) -> Iterable[bytes]:
        """Return the names of the queues, sorted."""

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return the statistics of one queue in one section, sorted by name; empty if the queue was deleted."""


class LiveQueueStats:
    """A source that reads the current statistics of a server's queues and aliases and saves nothing."""

    def __init__(self, server_view: ServerView) -> None:
        self._manager = server_view.manager

    def names(self) -> Iterable[bytes]:
        """Return the names of the queues and aliases, sorted."""
        return self._manager.names_in_order()

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return the statistics of one queue or alias in one section; empty if it was deleted."""
        alias = self._manager.aliases.get(name)
        if alias is not None:
            return {"put_bytes": alias.put_bytes, "put_items": alias.put_items} if section == "counters" else {}
        queue = self._manager.known(name)
        if queue is None:
            return {}
        match section:
            case "counters":
                snapshot = QueueSnapshot(queue)
                return {each: figure.value(snapshot) for each, figure in _COUNTERS.items()}
            case "gauges":
                return _gauges(queue)
            case "metrics":
                return dict(sorted(queue.histograms.all().items()))
        return {}


def _gauges(queue: Queue) -> dict[str, object]:
    snapshot, settings = QueueSnapshot(queue), queue.settings
    gauges = {name: figure.value(snapshot) for name, figure in _GAUGES.items()}
    # Kestrel has seconds here.
    gauges["create_time"] = snapshot.counters.create_time_ms // 1000
    gauges["max_bytes"] = _LARGEST_LONG if settings.max_size_bytes is None else settings.max_size_bytes
    gauges["max_items"] = _LARGEST_INT if settings.max_items is None else settings.max_items
    return {name: value for name, value in sorted(gauges.items()) if value is not None}


class SavedQueueStats:
    """A copy of the statistics of all queues. It takes about 1 KB for each queue."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[tuple[tuple[str, ...], tuple[object, ...]], ...]] = {}
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Tuples of names of statistics, shared by all queues to save memory."""

    def __len__(self) -> int:
        return len(self._kept)

    def names(self) -> Iterable[bytes]:
        """Return the names of the queues in the order of the calls of `keep`."""
        return self._kept.keys()

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return the statistics of one queue in one section; empty if the queue was not saved."""
        kept = self._kept.get(name)
        return {} if kept is None else dict(zip(*kept[SECTIONS.index(section)], strict=True))

    def keep(self, name: bytes, sections: Iterable[Mapping[str, object]]) -> None:
        """Save the statistics of one queue, given in the order of `SECTIONS`."""
        kept = []
        for values in sections:
            keys = tuple(values)
            kept.append((self._keys.setdefault(keys, keys), tuple(values.values())))
        self._kept[name] = tuple(kept)


@frozen
class OstrichStats:
    """The statistics of a server, by their names on the admin port, and the source of the statistics of its queues."""

    queues: QueueStatsSource
    counters: dict[str, Number] = field(factory=dict)
    gauges: dict[str, Number] = field(factory=dict)
    labels: dict[str, str] = field(factory=dict)
    metrics: dict[str, Histogram] = field(factory=dict)


_NOTHING: Final = Histogram()
"""An empty histogram that all saved statistics share, since most histograms of most queues are empty."""


class QueueStatsDelta:
    """A source of the changes of counters and metrics between two times. Gauges are those of the later time."""

    def __init__(self, now: QueueStatsSource, earlier: QueueStatsSource) -> None:
        self._now = now
        self._earlier = earlier

    def names(self) -> Iterable[bytes]:
        """Return the names of the queues at the later time."""
        return self._now.names()

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return the changes of one queue's counters or metrics, or its gauges at the later time."""
        return _between(self._now.values(name, section), self._earlier.values(name, section), section)


def stats_delta(now: OstrichStats, earlier: OstrichStats) -> OstrichStats:
    """Return the changes of counters and metrics from `earlier` to `now`, with the gauges and labels of `now`."""
    counters: Any = _between(now.counters, earlier.counters, "counters")
    metrics: Any = _between(now.metrics, earlier.metrics, "metrics")
    return OstrichStats(QueueStatsDelta(now.queues, earlier.queues), counters, now.gauges, now.labels, metrics)


def _between(now: Mapping[str, Any], earlier: Mapping[str, Any], section: str) -> Mapping[str, object]:
    match section:
        case "counters":
            return {name: _difference(value, earlier.get(name, 0)) for name, value in now.items()}
        case "metrics":
            return {
                name: histogram.since(earlier.get(name, _NOTHING)) if histogram.count else _NOTHING
                for name, histogram in now.items()
            }
    return now


def _difference(now: Number, before: Number) -> Number:
    # A smaller value means that the queue was deleted and created again.
    return now - before if now >= before else now


Gathering: TypeAlias = Generator[bytes, None, OstrichStats]
"""Work that yields an empty piece of a response after each step, and returns statistics."""


def gather_server_stats(server_view: ServerView) -> Gathering:
    """Gather the server's statistics. The result reads those of queues on demand."""
    totals = QueueHistograms()
    for _ in add_histograms(server_view.manager, totals):
        yield b""
    figures = OstrichStats(LiveQueueStats(server_view))
    snapshot = server_view.snapshot()
    for _ in snapshot.gather():
        yield b""
    _gather_server(server_view, snapshot, figures)
    figures.metrics.update(totals.all())
    return figures


def gather_all_stats(server_view: ServerView) -> Gathering:
    """Copy the statistics of the server and of all queues."""
    figures = yield from gather_server_stats(server_view)
    kept = SavedQueueStats()
    for name in figures.queues.names():
        kept.keep(name, (_kept(figures.queues.values(name, section)) for section in SECTIONS))
        yield b""
    metrics: Any = _kept(figures.metrics)
    return OstrichStats(kept, figures.counters, figures.gauges, figures.labels, metrics)


def _kept(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return `values` with copies of the histograms, which would otherwise continue to change."""
    return {name: _copied(value) if isinstance(value, Histogram) else value for name, value in values.items()}


def _copied(histogram: Histogram) -> Histogram:
    return histogram.copy() if histogram.count else _NOTHING


def _gather_server(server_view: ServerView, snapshot: ServerSnapshot, into: OstrichStats) -> None:
    for figure in SERVER_STAT_DEFINITIONS:
        if figure.name not in _LEFT_OUT:
            _note(into, figure.kind, _NAMES.get(figure.name, figure.name), figure.value(snapshot))
    status = server_view.control.status
    into.gauges["status/readable"] = int(status.takes_reads)
    into.gauges["status/writeable"] = int(status.takes_writes)
    for protocol, connections in server_view.core.connections_by_protocol().items():
        into.gauges[f"kestrel-{protocol}/connections"] = connections
    into.labels["version"] = snapshot.version


def _note(into: OstrichStats, kind: StatKind, name: str, value: object) -> None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return
    if isinstance(value, int | float):
        (into.counters if kind is StatKind.COUNTER else into.gauges)[name] = value


NAMES_PER_PIECE: Final = 64
METRICS_PER_PIECE: Final = 32
QUEUES_PER_STEP: Final = 32
"""Queues that one step looks at, even if `prefix` excludes all of them."""

_QUEUES: Final = "q/"


def sections(figures: OstrichStats, prefix: str) -> Iterator[tuple[str, Iterator[dict[str, object]]]]:
    """Yield the name and the parts of each of the four sections of a response.

    A part is a dict of statistics whose names begin with `prefix`. Queues are sorted by name.
    """
    yield "counters", _parts(figures.counters, figures.queues, "counters", prefix, NAMES_PER_PIECE)
    yield "gauges", _parts(figures.gauges, figures.queues, "gauges", prefix, NAMES_PER_PIECE)
    yield "labels", _parts(figures.labels, figures.queues, "labels", prefix, NAMES_PER_PIECE)
    metrics = _parts(figures.metrics, figures.queues, "metrics", prefix, METRICS_PER_PIECE)
    yield "metrics", ({name: summarize(value) for name, value in part.items()} for part in metrics)


def _parts(
    of_server: Mapping[str, Any], queues: QueueStatsSource, section: str, prefix: str, at_once: int
) -> Iterator[dict[str, Any]]:
    chosen = {name: value for name, value in sorted(of_server.items()) if name.startswith(prefix)}
    part: dict[str, Any] = {name: value for name, value in chosen.items() if name < _QUEUES}
    for place, name in enumerate(queues.names() if section != "labels" else (), 1):
        begin = f"{_QUEUES}{show_name(name)}/"
        if begin.startswith(prefix) or prefix.startswith(begin):
            values = queues.values(name, section)
            part.update((begin + key, value) for key, value in values.items() if (begin + key).startswith(prefix))
        if len(part) >= at_once or not place % QUEUES_PER_STEP:
            yield part
            part = {}
    part.update((name, value) for name, value in chosen.items() if name >= _QUEUES)
    yield part
