"""The figures as Kestrel's admin port gave them, by its names: counters, gauges, labels and metrics.

Programs that watched a Kestrel find what they read: `stats.json` and `stats.txt`, whole or of a period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from kestrel.admin.summary import summary, summing
from kestrel.admin.watched import Watched
from kestrel.histogram import Histogram
from kestrel.queues.figures import QUEUE_FIGURES, SERVER_FIGURES, TRAFFIC_FIGURES, Kind, QueueSight, ServerSight
from kestrel.queues.measures import Measures

Number = int | float

_LARGEST_LONG: Final = 2**63 - 1
_LARGEST_INT: Final = 2**31 - 1
"""What Kestrel says where there is no limit."""

_NAMES: Final = {"logsize": "journal_size", "curr_items": "items", "curr_connections": "connections"}
"""Where its names here differ from those in `stats`."""

_LEFT_OUT: Final = frozenset({"uptime", "time", "version", "build", "age", "children"})
"""What is told elsewhere, or twice in `stats`."""


@frozen
class Figures:
    """All figures of one moment, by their names here."""

    counters: dict[str, Number] = field(factory=dict)
    gauges: dict[str, Number] = field(factory=dict)
    labels: dict[str, str] = field(factory=dict)
    metrics: dict[str, Histogram] = field(factory=dict)


COMPARED_AT_ONCE: Final = 128
_NOTHING: Final = Histogram()
"""Most queues have most of their histograms empty: what is remembered has one for all of them, which stays so."""


def comparing(now: Figures, earlier: Figures, into: Figures) -> Iterator[None]:
    """Tell the counters and metrics of the time between, step by step; gauges and labels are as they are now."""
    into.gauges.update(now.gauges)
    into.labels.update(now.labels)
    for place, (name, value) in enumerate(now.counters.items(), 1):
        into.counters[name] = _difference(value, earlier.counters.get(name, 0))
        if not place % COMPARED_AT_ONCE:
            yield None
    for place, (name, histogram) in enumerate(now.metrics.items(), 1):
        before = earlier.metrics.get(name, _NOTHING)
        into.metrics[name] = histogram.since(before) if histogram.count else _NOTHING
        if not place % COMPARED_AT_ONCE:
            yield None


def _difference(now: Number, before: Number) -> Number:
    return now - before if now >= before else now  # less than before: the queue was made anew


def gathering(watched: Watched, into: Figures, *, to_keep: bool = False) -> Iterator[None]:
    """Gather all figures, queue by queue. Those that are kept must not go on growing."""
    totals = Measures()
    yield from summing(watched.manager, totals)
    sight = watched.sight()
    _gather_server(watched, sight, into)
    for queue in sight.queues:
        if not queue.is_deleted:
            _gather_queue(QueueSight(queue), into, to_keep)
        yield None
    for name, alias in sorted(watched.manager.aliases.items()):
        prefix = f"q/{name.decode('latin-1')}/"
        into.counters[prefix + "put_items"], into.counters[prefix + "put_bytes"] = alias.put_items, alias.put_bytes
    into.metrics.update(totals.all())


def _gather_server(watched: Watched, sight: ServerSight, into: Figures) -> None:
    for figure in SERVER_FIGURES:
        if figure.name not in _LEFT_OUT:
            _note(into, figure.kind, _NAMES.get(figure.name, figure.name), figure.value(sight))
    status = watched.control.status
    into.gauges["status/readable"] = int(status.takes_reads)
    into.gauges["status/writeable"] = int(status.takes_writes)
    for protocol, connections in watched.core.connections_by_protocol().items():
        into.gauges[f"kestrel-{protocol}/connections"] = connections
    into.labels["version"] = sight.version


def _gather_queue(sight: QueueSight, into: Figures, to_keep: bool) -> None:
    queue = sight.queue
    prefix = f"q/{queue.name.decode('latin-1')}/"
    for figure in (*QUEUE_FIGURES, *TRAFFIC_FIGURES):
        if figure.name not in _LEFT_OUT:
            _note(into, figure.kind, prefix + _NAMES.get(figure.name, figure.name), figure.value(sight))
    into.gauges[prefix + "create_time"] = sight.counters.create_time_ms // 1000  # Kestrel has seconds here
    settings = queue.settings
    into.gauges[prefix + "max_items"] = _LARGEST_INT if settings.max_items is None else settings.max_items
    into.gauges[prefix + "max_bytes"] = _LARGEST_LONG if settings.max_size_bytes is None else settings.max_size_bytes
    for name, histogram in queue.measures.all().items():
        into.metrics[prefix + name] = _kept(histogram) if to_keep else histogram


def _kept(histogram: Histogram) -> Histogram:
    return histogram.copy() if histogram.count else _NOTHING


def _note(into: Figures, kind: Kind, name: str, value: object) -> None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return
    if isinstance(value, int | float):
        (into.counters if kind is Kind.COUNTER else into.gauges)[name] = value


NAMES_PER_PIECE: Final = 256
METRICS_PER_PIECE: Final = 32


def sections(figures: Figures, prefix: str) -> Iterator[tuple[str, Iterator[dict[str, object]]]]:
    """The four sections of an answer, each in parts, sorted by name, of the names that begin so."""
    yield "counters", _parts(figures.counters, prefix)
    yield "gauges", _parts(figures.gauges, prefix)
    yield "labels", _parts(figures.labels, prefix)
    yield "metrics", _metrics(figures.metrics, prefix)


def _parts(values: Mapping[str, object], prefix: str) -> Iterator[dict[str, object]]:
    for names in _in_order(values, prefix, NAMES_PER_PIECE):
        yield {name: values[name] for name in names}


def _metrics(metrics: Mapping[str, Histogram], prefix: str) -> Iterator[dict[str, object]]:
    for names in _in_order(metrics, prefix, METRICS_PER_PIECE):
        yield {name: summary(metrics[name]) for name in names}


def _in_order(names: Iterable[str], prefix: str, at_once: int) -> Iterator[Sequence[str]]:
    """Those that begin so, sorted, about so many at a time: to sort those of thousands of queues is a long step."""
    groups: dict[str, list[str]] = {}
    for place, name in enumerate(names, 1):
        if name.startswith(prefix):
            groups.setdefault(name[: name.rfind("/") + 1] or name, []).append(name)
        if not place % NAMES_PER_PIECE:
            yield ()
    found: list[str] = []
    for group in sorted(groups):
        found += sorted(groups[group])
        if len(found) >= at_once:
            yield found
            found = []
    yield found
