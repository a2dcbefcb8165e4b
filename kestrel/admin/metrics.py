"""`/metrics`: all figures for Prometheus.

What the server has once is written by prometheus_client. What each queue has is written here, a few hundred lines at a
time: of thousands of queues the library would make one step of some hundred milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kestrel.admin.histogram_summary import add_histograms
from kestrel.admin.request_response import AdminRequest, AdminResponse
from kestrel.admin.server_view import ServerView
from kestrel.escaping import show_name
from kestrel.histogram import Histogram
from kestrel.queues.manager import QueueManager
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

_LEFT_OUT: Final = frozenset({"age", "age_msec", "create_time", "time", "uptime", "reserved_memory_ratio"})
"""Told twice, or told below in seconds."""

_HELP: Final = {
    "delivery_latency_msec": "how long items had waited that were taken",
    "fill_readbehind_usec": "how long it took to read items that are on disk alone",
    "fsync_delay_usec": "from a record to the sync that made it safe",
    "get_hit_latency_usec": "until who asked for an item had one, waiting among it",
    "get_miss_latency_usec": "until it was known that there is no item",
    "get_timeout_msec": "how long those waited who had no item in the end",
    "journal_rewrite_usec": "how long it took to write a journal anew",
    "journal_rotation_usec": "how long it took to go over to a new file",
    "request_size": "sizes of items that were put",
    "set_latency_usec": "until an item that was put was safe",
}
_UNITS: Final = {"_usec": ("_seconds", 1e-6), "_msec": ("_seconds", 1e-3), "_size": ("_size_bytes", 1.0)}
"""How the names of measures end, how their names end here, and what one of them is then."""

_BOUNDS: Final = {"_usec": range(4, 31), "_msec": range(0, 31, 2), "_size": range(4, 25)}
"""The powers of two that buckets end at: 16 us to 18 minutes, 1 ms to 12 days, 16 bytes to 16 MiB."""


def metrics(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """All of the server, and of as many queues as maxQueueSeries, those that came first."""
    return AdminResponse(_pieces(server_view), CONTENT_TYPE)


def _pieces(server_view: ServerView) -> Iterator[bytes]:
    totals = QueueHistograms()
    for _ in add_histograms(server_view.manager, totals):
        yield b""
    manager, most = server_view.manager, server_view.config.admin.max_queue_series
    names = [queue.name for queue in manager.queues_including_masked() if queue.name not in manager.aliases]
    shown, untold = names[:most], max(0, len(names) - most)
    del names  # many answers may wait for their clients
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
        yield from family_of(figure_name, StatKind.GAUGE, "of its storage", partial(_storage_figure, figure_name))


def _storage_figure(name: str, snapshot: QueueSnapshot) -> int | None:
    return snapshot.journal.get(name)


_IN_SECONDS: Final[tuple[tuple[str, StatKind, str, Callable[[QueueSnapshot], float]], ...]] = (
    ("age_seconds", StatKind.GAUGE, "how long the last item that was taken had waited", lambda of: of.age_ms / 1000),
    (
        "created_seconds",
        StatKind.GAUGE,
        "when it was opened, since the epoch",
        lambda of: of.counters.create_time_ms / 1000,
    ),
    (
        "delivery_seconds_total",
        StatKind.COUNTER,
        "how long the items had waited that were taken, in all",
        lambda of: of.histograms.delivery_latency_msec.sum / 1000,
    ),
)


class _SingleFamilyCollector(Collector):
    """Has one family to collect."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """That one."""
        yield self._family


def _of_server(
    server_view: ServerView, snapshot: ServerSnapshot, totals: QueueHistograms, untold: int
) -> Iterator[Metric]:
    labels = {
        figure.name: str(figure.value(snapshot)) for figure in SERVER_STAT_DEFINITIONS if figure.kind is StatKind.LABEL
    }
    yield InfoMetricFamily("kestrel", "what runs", {**labels, "storage": server_view.storage.partition(":")[0]})
    for figure in SERVER_STAT_DEFINITIONS:
        if figure.kind is not StatKind.LABEL and figure.name not in _LEFT_OUT:
            yield _number(figure, snapshot)
    yield GaugeMetricFamily("kestrel_uptime_seconds", "since the start", snapshot.uptime_s)
    yield GaugeMetricFamily(
        "kestrel_reserved_memory_ratio",
        "what the queues may take of the machine's memory, in all",
        float(snapshot.reserved_memory_ratio),
    )
    status = GaugeMetricFamily("kestrel_status", "1 for the status that the server has", labels=["status"])
    for each in StatusLevel:
        status.add_metric([each.value], int(each is server_view.control.status.published))
    yield status
    sets = GaugeMetricFamily("kestrel_server_set_member", "1 for server sets that the server is in", labels=["set"])
    for name, is_in in server_view.server_sets().items():
        sets.add_metric([name], int(is_in))
    if sets.samples:
        yield sets
    connections = GaugeMetricFamily("kestrel_connections", "clients that are connected", labels=["protocol"])
    for protocol, count in server_view.core.connections_by_protocol().items():
        connections.add_metric([protocol], count)
    yield connections
    yield GaugeMetricFamily("kestrel_queues", "queues", snapshot.queues)
    yield GaugeMetricFamily("kestrel_queues_untold", "queues beyond maxQueueSeries, of which nothing is told", untold)
    for name, histogram in totals.all().items():
        if name in _HELP:
            yield _histogram(name, histogram)
    yield from ProcessCollector(registry=None).collect()


def _number(figure: StatDefinition[ServerSnapshot], snapshot: ServerSnapshot) -> Metric:
    value: Any = figure.value(snapshot)
    make = CounterMetricFamily if figure.kind is StatKind.COUNTER else GaugeMetricFamily
    return make(f"kestrel_{figure.name}", figure.help, value)


def _histogram(name: str, histogram: Histogram) -> Metric:
    ending = name[-5:]
    new_ending, unit = _UNITS[ending]
    buckets = []
    for power in _BOUNDS[ending]:
        # A time that was cut to a whole number is below the bound; a size may be the bound itself, so that is one less.
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
    """Yield one figure of these queues, as each is when its line is made; without those deleted meanwhile."""
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
    """Return a queue's name as a label's value."""
    return show_name(name).replace("\\", r"\\").replace('"', r"\"")
