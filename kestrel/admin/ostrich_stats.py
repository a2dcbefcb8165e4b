"""The figures as Kestrel's admin port gave them, by its names: counters, gauges, labels and metrics.

Programs that watched a Kestrel find what they read: `stats.json` and `stats.txt`, whole or of a period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from attrs import field, frozen

from kestrel.admin.histogram_summary import add_histograms, summarize
from kestrel.admin.server_view import ServerView
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
"""What Kestrel says where there is no limit."""

_NAMES: Final = {"logsize": "journal_size", "curr_items": "items", "curr_connections": "connections"}
"""Where its names here differ from those in `stats`."""

_LEFT_OUT: Final = frozenset({"uptime", "time", "version", "build", "age", "children"})
"""What is told elsewhere, or twice in `stats`."""


def _named(kind: StatKind) -> dict[str, StatDefinition[QueueSnapshot]]:
    """Return the figures of queues that are of this kind, by their names here, sorted."""
    figures = (*QUEUE_STAT_DEFINITIONS, *TRAFFIC_STAT_DEFINITIONS)
    chosen = (figure for figure in figures if figure.kind is kind and figure.name not in _LEFT_OUT)
    return dict(sorted((_NAMES.get(figure.name, figure.name), figure) for figure in chosen))


_COUNTERS: Final = _named(StatKind.COUNTER)
_GAUGES: Final = _named(StatKind.GAUGE)

SECTIONS: Final = ("counters", "gauges", "labels", "metrics")


class QueueStatsSource(Protocol):
    """Where the figures of queues come from, one queue and one section at a time."""

    def names(self) -> Iterable[bytes]:
        """Return the queues, in the order of their names."""

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return the figures of one queue in one section, sorted by name; none if it was deleted."""


class LiveQueueStats:
    """The queues and aliases of a server as they are when they are asked about; it holds nothing of them."""

    def __init__(self, server_view: ServerView) -> None:
        self._manager = server_view.manager

    def names(self) -> Iterable[bytes]:
        """Return the queues and aliases, in the order of their names."""
        return self._manager.names_in_order()

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return the figures of one queue or alias in one section."""
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
    gauges["create_time"] = snapshot.counters.create_time_ms // 1000  # Kestrel has seconds here
    gauges["max_bytes"] = _LARGEST_LONG if settings.max_size_bytes is None else settings.max_size_bytes
    gauges["max_items"] = _LARGEST_INT if settings.max_items is None else settings.max_items
    return dict(sorted(gauges.items()))


class SavedQueueStats:
    """The figures of all queues as they were. Takes about 1 KB for each queue."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[tuple[tuple[str, ...], tuple[object, ...]], ...]] = {}
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}
        """The names of the figures, once for all queues."""

    def __len__(self) -> int:
        return len(self._kept)

    def names(self) -> Iterable[bytes]:
        """Return the queues in the order in which they were kept."""
        return self._kept.keys()

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return the figures of one queue in one section; none where nothing is kept of it."""
        kept = self._kept.get(name)
        return {} if kept is None else dict(zip(*kept[SECTIONS.index(section)], strict=True))

    def keep(self, name: bytes, sections: Iterable[Mapping[str, object]]) -> None:
        """Keep the figures of one queue, in the order of `SECTIONS`."""
        kept = []
        for values in sections:
            keys = tuple(values)
            kept.append((self._keys.setdefault(keys, keys), tuple(values.values())))
        self._kept[name] = tuple(kept)


@frozen
class OstrichStats:
    """The figures of a server, by their names here, and where those of its queues come from."""

    queues: QueueStatsSource
    counters: dict[str, Number] = field(factory=dict)
    gauges: dict[str, Number] = field(factory=dict)
    labels: dict[str, str] = field(factory=dict)
    metrics: dict[str, Histogram] = field(factory=dict)


_NOTHING: Final = Histogram()
"""Most queues have most of their histograms empty. Kept figures share this one for all of them."""


class QueueStatsDelta:
    """The counters and metrics of queues between two times; gauges are those of the later one."""

    def __init__(self, now: QueueStatsSource, earlier: QueueStatsSource) -> None:
        self._now = now
        self._earlier = earlier

    def names(self) -> Iterable[bytes]:
        """Return the queues of the later time."""
        return self._now.names()

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        """Return what one queue has more than at the earlier time."""
        return _between(self._now.values(name, section), self._earlier.values(name, section), section)


def stats_delta(now: OstrichStats, earlier: OstrichStats) -> OstrichStats:
    """Return the counters and metrics of the time between; gauges and labels are as they are now."""
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
    return now - before if now >= before else now  # less than before: the queue was created again


def gather_server_stats(server_view: ServerView) -> Iterator[OstrichStats | None]:
    """Gather the server's figures step by step: None until they are there. Those of its queues are not kept."""
    totals = QueueHistograms()
    for _ in add_histograms(server_view.manager, totals):
        yield None
    figures = OstrichStats(LiveQueueStats(server_view))
    snapshot = server_view.snapshot()
    for _ in snapshot.gather():
        yield None
    _gather_server(server_view, snapshot, figures)
    figures.metrics.update(totals.all())
    yield figures


def gather_all_stats(server_view: ServerView) -> Iterator[OstrichStats | None]:
    """Gather all figures as they are now, those of the queues included, step by step: None until they are there."""
    for figures in gather_server_stats(server_view):
        if figures is None:
            yield None
            continue
        kept = SavedQueueStats()
        for name in figures.queues.names():
            kept.keep(name, (_kept(figures.queues.values(name, section)) for section in SECTIONS))
            yield None
        metrics: Any = _kept(figures.metrics)
        yield OstrichStats(kept, figures.counters, figures.gauges, figures.labels, metrics)


def _kept(values: Mapping[str, object]) -> Mapping[str, object]:
    """Copy what would go on growing."""
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
"""Queues that are passed over in one step where a prefix leaves them out."""

_QUEUES: Final = "q/"


def sections(figures: OstrichStats, prefix: str) -> Iterator[tuple[str, Iterator[dict[str, object]]]]:
    """Yield the four sections of an answer, each in parts, of the names that begin with `prefix`.

    Queues come in the order of their names.
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
