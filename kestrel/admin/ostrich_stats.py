"""The statistics in the format of the original Kestrel's admin port: counters, gauges, labels and metrics.

Monitoring programs for the original Kestrel can read them from `stats.json` and `stats.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from attrs import field, frozen
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator

from kestrel.admin.request_response import HttpError
from kestrel.admin.server_view import ServerView, add_histograms, summarize
from kestrel.admin.time_slices import SlicedLoop
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


class LiveQueueStats:
    """A source that reads the current statistics of a server's queues and aliases and saves nothing.

    All sources have `names`, sorted, and `values`: the statistics of one queue in one section, sorted by name, or none
    if the queue was deleted.
    """

    def __init__(self, server_view: ServerView) -> None:
        self._manager = server_view.manager
        self.names = self._manager.names_in_order

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
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

    def names(self) -> Iterable[bytes]:
        return self._kept.keys()

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
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
    """The statistics of a server by section and name, and the source of the statistics of its queues."""

    queues: QueueStatsSource
    of_server: dict[str, dict[str, Any]] = field(factory=lambda: {section: {} for section in SECTIONS})


_NOTHING: Final = Histogram()
"""An empty histogram that all saved statistics share, since most histograms of most queues are empty."""


class QueueStatsDelta:
    """A source of the changes of counters and metrics between two times. Gauges are those of the later time."""

    def __init__(self, now: QueueStatsSource, earlier: QueueStatsSource) -> None:
        self._now = now
        self._earlier = earlier
        self.names: Callable[[], Iterable[bytes]] = now.names

    def values(self, name: bytes, section: str) -> Mapping[str, object]:
        return _between(self._now.values(name, section), self._earlier.values(name, section), section)


QueueStatsSource: TypeAlias = LiveQueueStats | SavedQueueStats | QueueStatsDelta


def stats_delta(now: OstrichStats, earlier: OstrichStats) -> OstrichStats:
    """Return the changes of counters and metrics from `earlier` to `now`, with the gauges and labels of `now`."""
    of_server = {section: _between(now.of_server[section], earlier.of_server[section], section) for section in SECTIONS}
    return OstrichStats(QueueStatsDelta(now.queues, earlier.queues), of_server)


def _between(now: Mapping[str, Any], earlier: Mapping[str, Any], section: str) -> dict[str, Any]:
    match section:
        case "counters":
            return {name: _difference(value, earlier.get(name, 0)) for name, value in now.items()}
        case "metrics":
            return {
                name: histogram.since(earlier.get(name, _NOTHING)) if histogram.count else _NOTHING
                for name, histogram in now.items()
            }
    return dict(now)


def _difference(now: float, before: float) -> float:
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
    _gather_server(server_view, snapshot, figures.of_server)
    figures.of_server["metrics"].update(totals.all())
    return figures


def gather_all_stats(server_view: ServerView) -> Gathering:
    """Copy the statistics of the server and of all queues."""
    figures = yield from gather_server_stats(server_view)
    kept = SavedQueueStats()
    for name in figures.queues.names():
        kept.keep(name, (_kept(figures.queues.values(name, section)) for section in SECTIONS))
        yield b""
    return OstrichStats(kept, {section: _kept(values) for section, values in figures.of_server.items()})


def _kept(values: Mapping[str, object]) -> dict[str, object]:
    """Return `values` with copies of the histograms, which would otherwise continue to change."""
    return {name: _copied(value) if isinstance(value, Histogram) else value for name, value in values.items()}


def _copied(histogram: Histogram) -> Histogram:
    return histogram.copy() if histogram.count else _NOTHING


def _gather_server(server_view: ServerView, snapshot: ServerSnapshot, into: Mapping[str, dict[str, Any]]) -> None:
    for figure in SERVER_STAT_DEFINITIONS:
        value = figure.value(snapshot)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                continue
        if figure.name not in _LEFT_OUT and isinstance(value, int | float):
            section = "counters" if figure.kind is StatKind.COUNTER else "gauges"
            into[section][_NAMES.get(figure.name, figure.name)] = value
    status = server_view.control.status
    into["gauges"]["status/readable"] = int(status.takes_reads)
    into["gauges"]["status/writeable"] = int(status.takes_writes)
    for protocol, connections in server_view.core.connections_by_protocol().items():
        into["gauges"][f"kestrel-{protocol}/connections"] = connections
    into["labels"]["version"] = snapshot.version


NAMES_PER_PIECE: Final = 64
METRICS_PER_PIECE: Final = 32
QUEUES_PER_STEP: Final = 32
"""Queues that one step looks at, even if `prefix` excludes all of them."""

_QUEUES: Final = "q/"


def sections(figures: OstrichStats, prefix: str) -> Iterator[tuple[str, Iterator[dict[str, object]]]]:
    """Yield the name and the parts of each of the four sections of a response.

    A part is a dict of statistics whose names begin with `prefix`. Queues are sorted by name.
    """
    for section in SECTIONS:
        is_metrics = section == "metrics"
        at_once = METRICS_PER_PIECE if is_metrics else NAMES_PER_PIECE
        parts = _parts(figures.of_server[section], figures.queues, section, prefix, at_once)
        yield section, map(_summarize, parts) if is_metrics else parts


def _summarize(histograms: Mapping[str, Histogram]) -> dict[str, object]:
    return {name: summarize(histogram) for name, histogram in histograms.items()}


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


MIN_PERIOD_S: Final = 60
MAX_PERIOD_S: Final = 86_400
MAX_PERIODS: Final = 4
MAX_NAMESPACES: Final = 16
"""Limit of namespaces. Each keeps a copy of the statistics of all queues."""
KEPT_BY_PERIOD: Final = 2
"""Copies of all statistics that a period keeps: at its beginning and at its end."""
MAX_KEPT_QUEUES: Final = 50_000
"""Limit of copies of one queue's statistics, for all periods and namespaces together. A copy takes about 1 KB."""

NAMESPACE_TIMEOUT_S: Final = 3600
"""Seconds without a request after which a namespace or period is dropped; for a period, at least twice its length."""


class IntervalStats:
    """The saved statistics of periods and namespaces."""

    def __init__(self, server_view: ServerView, clock: IReactorTime, cooperator: Cooperator) -> None:
        self._server_view = server_view
        self._clock = clock
        self._cooperator = cooperator
        self._periods: dict[int, _PeriodSampler] = {}
        self._namespaces: dict[bytes, OstrichStats] = {}
        self.answers = 0
        """Number of responses about periods and namespaces that are being sent."""
        self._asked_s: dict[int | bytes, float] = {}
        """Time of the last request for each period (an int) and namespace (bytes)."""

    def stop(self) -> None:
        for period in self._periods.values():
            period.stop()

    def period_stats(self, given: bytes) -> Gathering:
        """Return the statistics of the last complete period of `given` seconds.

        Until the first period is complete, return the statistics from the server's start to its beginning. Raise
        `HttpError` if the period is invalid or a limit is reached.
        """
        seconds = _whole_number(given)
        if seconds < MIN_PERIOD_S:
            # Kestrel's own message.
            raise HttpError(400, "Invalid option for stats command: statsListenerMinPeriod:1.minutes")
        if seconds > MAX_PERIOD_S:
            raise HttpError(400, f"the period is longer than {MAX_PERIOD_S} seconds")
        period = self._periods.get(seconds)
        self._forget_some()
        if period is None:
            if len(self._periods) >= MAX_PERIODS:
                listened = ", ".join(map(str, sorted(self._periods)))
                raise HttpError(409, f"too many periods; those of {listened} seconds are in use; limit={MAX_PERIODS}")
            self._check_room(KEPT_BY_PERIOD)
            period = self._periods[seconds] = _PeriodSampler(self._server_view, self._clock, self._cooperator, seconds)
        self._asked_s[seconds] = self._clock.seconds()
        return period.newest()

    def namespace_stats(self, name: bytes) -> Gathering:
        """Return the statistics since the previous request for the namespace `name`, or since the server's start.

        Raise `HttpError` if a limit is reached.
        """
        self._forget_some()
        if name not in self._namespaces and len(self._namespaces) >= MAX_NAMESPACES:
            raise HttpError(409, f"too many namespaces are in use; limit={MAX_NAMESPACES}")
        if name not in self._namespaces or self.answers:
            self._check_room(1)
        self._asked_s[name] = self._clock.seconds()
        # Added now, so that simultaneous requests for new namespaces cannot exceed the limit.
        self._namespaces.setdefault(name, OstrichStats(SavedQueueStats()))
        return self._since_last(name)

    def _check_room(self, times: int) -> None:
        """Raise `HttpError` if `times` more copies of the statistics of all queues would exceed `MAX_KEPT_QUEUES`.

        The first request is always allowed.
        """
        kept_times = KEPT_BY_PERIOD * len(self._periods) + len(self._namespaces) + self.answers
        queues = len(self._server_view.manager.queues_including_masked())
        if kept_times and (kept_times + times) * queues > MAX_KEPT_QUEUES:
            raise HttpError(503, f"statistics of {queues} queues are saved {kept_times} times already; try again later")

    def _forget_some(self) -> None:
        now_s = self._clock.seconds()
        for request, asked_s in list(self._asked_s.items()):
            shortest_s = 2 * request if isinstance(request, int) else 0
            if now_s - asked_s < max(NAMESPACE_TIMEOUT_S, shortest_s):
                continue
            del self._asked_s[request]
            if isinstance(request, int):
                self._periods.pop(request).stop()
            else:
                self._namespaces.pop(request, None)

    def _since_last(self, name: bytes) -> Gathering:
        now = yield from gather_all_stats(self._server_view)
        earlier, self._namespaces[name] = self._namespaces[name], now
        return stats_delta(now, earlier)


class _PeriodSampler:
    """A timer that saves the statistics at the end of each period."""

    def __init__(self, server_view: ServerView, clock: IReactorTime, cooperator: Cooperator, seconds: int) -> None:
        self._server_view = server_view
        self._before = OstrichStats(SavedQueueStats())
        self._latest: OstrichStats | None = None
        self._loop = SlicedLoop(clock, cooperator, self._steps, "Sampling for a period failed")
        self._loop.start(seconds)
        self.stop = self._loop.stop

    def _steps(self, _: int) -> Iterator[bytes]:
        now = yield from gather_all_stats(self._server_view)
        self._latest, self._before = stats_delta(now, self._before), now

    def newest(self) -> Gathering:
        """Return the last saved statistics, or those since the server's start if none are saved yet."""
        if self._latest is None:
            return (yield from gather_server_stats(self._server_view))
        return self._latest


def _whole_number(given: bytes) -> int:
    if not given.removeprefix(b"-").isdigit():
        raise HttpError(400, "the period is not a whole number of seconds")
    return int(given) if len(given) < 10 else MAX_PERIOD_S + 1
