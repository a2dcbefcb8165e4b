"""Statistics of an interval instead of since the start: the last complete period, or since the previous request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator

from kestrel.admin.ostrich_stats import (
    Gathering,
    OstrichStats,
    SavedQueueStats,
    gather_all_stats,
    gather_server_stats,
    stats_delta,
)
from kestrel.admin.request_response import HttpError
from kestrel.admin.server_view import ServerView
from kestrel.admin.time_slices import SlicedLoop

MIN_PERIOD_S: Final = 60
MAX_PERIOD_S: Final = 86_400
MAX_PERIODS: Final = 4
MAX_NAMESPACES: Final = 16
"""Limit of namespaces. Each keeps a copy of the statistics of all queues."""
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
        """Stop the timers of all periods."""
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


KEPT_BY_PERIOD: Final = 2
"""Copies of all statistics that a period keeps: at its beginning and at its end."""


class _PeriodSampler:
    """A timer that saves the statistics at the end of each period."""

    def __init__(self, server_view: ServerView, clock: IReactorTime, cooperator: Cooperator, seconds: int) -> None:
        self._server_view = server_view
        self._before = OstrichStats(SavedQueueStats())
        self._latest: OstrichStats | None = None
        self._loop = SlicedLoop(clock, cooperator, self._steps, "Sampling for a period failed")
        self._loop.start(seconds)

    def stop(self) -> None:
        """Stop the timer."""
        self._loop.stop()

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
