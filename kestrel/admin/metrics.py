"""`/metrics`: all statistics in the text format of Prometheus.

prometheus_client writes the metrics of the server. This module writes the metrics of queues itself, a few lines at a
time, because the library would block the reactor for some hundred milliseconds with thousands of queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kestrel.admin.request_response import AdminRequest, AdminResponse
from kestrel.admin.server_view import ServerView, add_histograms
from kestrel.escaping import show_name
from kestrel.histogram import Histogram
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.stat_definitions import (
    COMMON_STORAGE_STATS,
    QUEUE_STAT_DEFINITIONS,
    SERVER_STAT_DEFINITIONS,
    TRAFFIC_STAT_DEFINITIONS,
    QueueSnapshot,
    ServerSnapshot,
    StatDefinition,
    StatKind,
)
from kestrel.queues.status import StatusLevel

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUEUES_PER_PIECE: Final = 64

_LEFT_OUT: Final = frozenset(
    {"age", "age_msec", "oldest_age_msec", "create_time", "time", "uptime", "reserved_memory_ratio"}
)
"""Statistics that are omitted, because they are duplicates or are exported in seconds under another name."""

_HELP: Final = {
    "delivery_latency_msec": "time that a delivered item had been in its queue",
    "fill_readbehind_usec": "time to read items in read-behind from disk",
    "fsync_delay_usec": "time from writing a record to the fsync that made it durable",
    "get_hit_latency_usec": "time until a get returned an item, including the wait for it",
    "get_miss_latency_usec": "time until a non-blocking get found no item",
    "get_timeout_msec": "time that a blocking get waited without an item",
    "journal_rewrite_usec": "time to rewrite a journal",
    "journal_rotation_usec": "time to rotate a journal to a new file",
    "request_size": "size of a put item",
    "set_latency_usec": "time until a put was committed",
}
_UNITS: Final = {"_usec": ("_seconds", 1e-6), "_msec": ("_seconds", 1e-3), "_size": ("_size_bytes", 1.0)}
"""For each suffix of a histogram's name: the suffix of the metric, and the factor that converts a value."""

_BOUNDS: Final = {"_usec": range(4, 31), "_msec": range(0, 31, 2), "_size": range(4, 25)}
"""Exponents of the bounds of buckets: 16 us to 18 minutes, 1 ms to 12 days, 16 bytes to 16 MiB."""


def metrics(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return the metrics of the server and of the first `maxQueueSeries` queues."""
    return AdminResponse(_pieces(server_view), CONTENT_TYPE)


def _pieces(server_view: ServerView) -> Iterator[bytes]:
    totals = QueueHistograms()
    for _ in add_histograms(server_view.manager, totals):
        yield b""
    manager, most = server_view.manager, server_view.config.admin.max_queue_series
    names = [queue.name for queue in manager.queues_including_masked() if queue.name not in manager.aliases]
    shown, untold = names[:most], max(0, len(names) - most)
    # Many responses may wait for slow clients.
    del names
    of_storages: set[str] = set()
    for name in shown:
        queue = manager.known(name)
        if queue is not None:
            of_storages.update(queue.store.stats)
        yield b""
    snapshot = server_view.snapshot()
    for _ in snapshot.gather():
        yield b""
    for family in _of_server(server_view, snapshot, totals, untold):
        yield generate_latest(_SingleFamilyCollector(family))
    family_of = partial(_family, manager, shown)
    for figure in (*QUEUE_STAT_DEFINITIONS, *TRAFFIC_STAT_DEFINITIONS):
        if figure.kind is not StatKind.LABEL and figure.name not in _LEFT_OUT:
            ending = "_total" if figure.kind is StatKind.COUNTER else ""
            yield from family_of(figure.name + ending, figure.kind, figure.help, figure.value)
    for figure_name, kind, meaning, value in _IN_SECONDS:
        yield from family_of(figure_name, kind, meaning, value)
    for figure_name in sorted(of_storages - COMMON_STORAGE_STATS):
        yield from family_of(
            figure_name, StatKind.GAUGE, "statistic of the storage", partial(_storage_figure, figure_name)
        )


def _storage_figure(name: str, snapshot: QueueSnapshot) -> int | None:
    return snapshot.journal.get(name)


def _oldest_age_s(queue: Queue) -> float | None:
    age_ms = queue.oldest_age_ms
    return None if age_ms is None else age_ms / 1000


_IN_SECONDS: Final[tuple[tuple[str, StatKind, str, Callable[[QueueSnapshot], float | None]], ...]] = (
    ("age_seconds", StatKind.GAUGE, "last wait: how long the last item taken had waited", lambda of: of.age_ms / 1000),
    ("oldest_age_seconds", StatKind.GAUGE, "age of the oldest item", lambda of: _oldest_age_s(of.queue)),
    (
        "created_seconds",
        StatKind.GAUGE,
        "time when the queue was opened, in seconds since the epoch",
        lambda of: of.counters.create_time_ms / 1000,
    ),
    (
        "delivery_seconds_total",
        StatKind.COUNTER,
        "sum of the times that taken items had waited",
        lambda of: of.histograms.delivery_latency_msec.sum / 1000,
    ),
)


class _SingleFamilyCollector(Collector):
    """A collector of a single metric family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _of_server(
    server_view: ServerView, snapshot: ServerSnapshot, totals: QueueHistograms, untold: int
) -> Iterator[Metric]:
    labels = {
        figure.name: str(figure.value(snapshot)) for figure in SERVER_STAT_DEFINITIONS if figure.kind is StatKind.LABEL
    }
    yield InfoMetricFamily(
        "kestrel",
        "version, build and storage of the server",
        {**labels, "storage": server_view.storage.partition(":")[0]},
    )
    for figure in SERVER_STAT_DEFINITIONS:
        if figure.kind is not StatKind.LABEL and figure.name not in _LEFT_OUT:
            yield _number(figure, snapshot)
    yield GaugeMetricFamily("kestrel_uptime_seconds", "time since the server started", snapshot.uptime_s)
    yield GaugeMetricFamily(
        "kestrel_reserved_memory_ratio",
        "memory that all queues may use, as a fraction of the machine's memory",
        float(snapshot.reserved_memory_ratio),
    )
    refuses_puts = int(server_view.manager.refusal is not None)
    meaning = "1 if the storage refuses all puts, as on a full disk"
    yield GaugeMetricFamily("kestrel_puts_refused", meaning, refuses_puts)
    published = server_view.control.status.published
    statuses = {each.value: each is published for each in StatusLevel}
    yield _gauges("kestrel_status", "1 for the current status of the server", "status", statuses)
    if sets := server_view.server_sets():
        yield _gauges("kestrel_server_set_member", "1 if the server is a member of the set", "set", sets)
    connections = server_view.core.connections_by_protocol()
    yield _gauges("kestrel_connections", "number of connected clients", "protocol", connections)
    yield GaugeMetricFamily("kestrel_queues", "number of queues", snapshot.queues)
    yield GaugeMetricFamily("kestrel_queues_untold", "number of queues omitted because of maxQueueSeries", untold)
    for name, histogram in totals.all().items():
        if name in _HELP:
            yield _histogram(name, histogram)
    yield from ProcessCollector(registry=None).collect()


def _gauges(name: str, meaning: str, label: str, values: Mapping[str, int]) -> Metric:
    """Return a metric with a gauge for each value of a label."""
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for each, value in values.items():
        family.add_metric([each], int(value))
    return family


def _number(figure: StatDefinition[ServerSnapshot], snapshot: ServerSnapshot) -> Metric:
    value: Any = figure.value(snapshot)
    make = CounterMetricFamily if figure.kind is StatKind.COUNTER else GaugeMetricFamily
    return make(f"kestrel_{figure.name}", figure.help, value)


def _histogram(name: str, histogram: Histogram) -> Metric:
    ending = name[-5:]
    new_ending, unit = _UNITS[ending]
    buckets = []
    for power in _BOUNDS[ending]:
        # Times are truncated, so they are below the bound. A size may equal the bound, so its bucket ends one lower.
        bound = (1 << power) * unit if unit < 1 else (1 << power) - 1
        buckets.append((f"{bound:.9g}", histogram.count_below(1 << power)))
    buckets.append(("+Inf", histogram.count))
    family = HistogramMetricFamily(f"kestrel_{name.removesuffix(ending)}{new_ending}", _HELP[name])
    family.add_metric([], buckets, histogram.sum * unit)
    return family


def _family(
    manager: QueueManager,
    names: Sequence[bytes],
    figure: str,
    kind: StatKind,
    meaning: str,
    value: Callable[[QueueSnapshot], object],
) -> Iterator[bytes]:
    """Yield the lines of one metric for the queues `names`, in pieces. Queues deleted meanwhile are omitted.

    Each value is read when its piece is made.
    """
    metric = f"kestrel_queue_{figure}"
    yield f"# HELP {metric} {meaning}\n# TYPE {metric} {kind.value}\n".encode()
    for start in range(0, len(names), QUEUES_PER_PIECE):
        lines = []
        for name in names[start : start + QUEUES_PER_PIECE]:
            queue = manager.known(name)
            number = None if queue is None else value(QueueSnapshot(queue))
            if number is not None:
                lines.append(f'{metric}{{queue="{_escaped(name)}"}} {number}\n')
        yield "".join(lines).encode()


def _escaped(name: bytes) -> str:
    """Return a queue's name, escaped for the value of a label."""
    return show_name(name).replace("\\", r"\\").replace('"', r"\"")
