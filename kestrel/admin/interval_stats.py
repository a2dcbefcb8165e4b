"""Figures of a time rather than since the start: of the last whole period, or since somebody asked last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, LoopingCall
from twisted.logger import Logger

from kestrel.admin.ostrich_stats import (
    OstrichStats,
    SavedQueueStats,
    gather_all_stats,
    gather_server_stats,
    stats_delta,
)
from kestrel.admin.request_response import HttpError
from kestrel.admin.server_view import ServerView
from kestrel.admin.time_slices import ignore_scheduler_stopped

log = Logger(__name__)

MIN_PERIOD_S: Final = 60
MAX_PERIOD_S: Final = 86_400
MAX_PERIODS: Final = 4
MAX_NAMESPACES: Final = 16
"""Each keeps the figures of all queues as they were."""
MAX_KEPT_QUEUES: Final = 50_000
"""Queues whose figures are kept, of all periods and namespaces together. Each takes about 1 KB."""

NAMESPACE_TIMEOUT_S: Final = 3600
"""What nobody has asked about for so long, and for two of its periods, makes room for others."""


class IntervalStats:
    """What is remembered for those who ask for the figures of a time."""

    def __init__(self, server_view: ServerView, clock: IReactorTime, cooperator: Cooperator) -> None:
        self._server_view = server_view
        self._clock = clock
        self._cooperator = cooperator
        self._periods: dict[int, _PeriodSampler] = {}
        self._namespaces: dict[bytes, OstrichStats] = {}
        self.answers = 0
        """Answers about periods and namespaces that are under way."""
        self._asked_s: dict[int | bytes, float] = {}
        """When each was asked about last."""

    def stop(self) -> None:
        """Remember nothing any more."""
        for period in self._periods.values():
            period.stop()

    def period_stats(self, given: bytes) -> Iterator[OstrichStats | None]:
        """The figures of the last whole period of so many seconds; before the first is over, of all time before it.

        Gathered step by step: None until they are there. Raises `HttpError`.
        """
        seconds = _whole_number(given)
        if seconds < MIN_PERIOD_S:  # as Kestrel says it
            raise HttpError(400, "Invalid option for stats command: statsListenerMinPeriod:1.minutes")
        if seconds > MAX_PERIOD_S:
            raise HttpError(400, f"a period has {MAX_PERIOD_S} seconds at most")
        period = self._periods.get(seconds)
        self._forget_some()
        if period is None:
            if len(self._periods) >= MAX_PERIODS:
                listened = ", ".join(map(str, sorted(self._periods)))
                raise HttpError(409, f"periods of {listened} seconds are asked about already; limit={MAX_PERIODS}")
            self._check_room(KEPT_BY_PERIOD)
            period = self._periods[seconds] = _PeriodSampler(self._server_view, self._clock, self._cooperator, seconds)
        self._asked_s[seconds] = self._clock.seconds()
        return period.newest()

    def namespace_stats(self, name: bytes) -> Iterator[OstrichStats | None]:
        """What came since that name was asked about last. Gathered step by step: None until they are there."""
        self._forget_some()
        if name not in self._namespaces and len(self._namespaces) >= MAX_NAMESPACES:
            raise HttpError(409, f"so many namespaces are asked about already; limit={MAX_NAMESPACES}")
        if name not in self._namespaces or self.answers:
            self._check_room(1)
        self._asked_s[name] = self._clock.seconds()
        # Added now, so that simultaneous requests for new namespaces cannot exceed the limit.
        self._namespaces.setdefault(name, OstrichStats(SavedQueueStats()))
        return self._since_last(name)

    def _check_room(self, times: int) -> None:
        """Refuse to keep the figures of all queues so many times more if that takes too much memory.

        Those of one request are kept in any case.
        """
        kept_times = KEPT_BY_PERIOD * len(self._periods) + len(self._namespaces) + self.answers
        queues = len(self._server_view.manager.queues_including_masked())
        if kept_times and (kept_times + times) * queues > MAX_KEPT_QUEUES:
            raise HttpError(503, f"the figures of {queues} queues are kept {kept_times} times already; try again later")

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

    def _since_last(self, name: bytes) -> Iterator[OstrichStats | None]:
        for now in gather_all_stats(self._server_view):
            if now is None:
                yield None
                continue
            earlier, self._namespaces[name] = self._namespaces[name], now
            yield stats_delta(now, earlier)


KEPT_BY_PERIOD: Final = 2
"""A period keeps the figures at its end and at its beginning."""


class _PeriodSampler:
    """Takes the figures at the end of each period."""

    def __init__(self, server_view: ServerView, clock: IReactorTime, cooperator: Cooperator, seconds: int) -> None:
        self._server_view = server_view
        self._cooperator = cooperator
        self._before = OstrichStats(SavedQueueStats())
        self._latest: OstrichStats | None = None
        self._timer = LoopingCall(self._take)
        self._timer.clock = clock
        self._timer.start(seconds, now=True).addErrback(lambda failure: log.failure("A period has ended", failure))

    def stop(self) -> None:
        """Take no more."""
        if self._timer.running:
            self._timer.stop()

    def _take(self) -> Deferred[object]:
        return self._cooperator.cooperate(self._steps()).whenDone().addErrback(ignore_scheduler_stopped)

    def _steps(self) -> Iterator[None]:
        for now in gather_all_stats(self._server_view):
            if now is None:
                yield None
            else:
                self._latest, self._before = stats_delta(now, self._before), now

    def newest(self) -> Iterator[OstrichStats | None]:
        """Return those of the last whole period; None until they are there."""
        return gather_server_stats(self._server_view) if self._latest is None else iter((self._latest,))


def _whole_number(given: bytes) -> int:
    if not given.removeprefix(b"-").isdigit():
        raise HttpError(400, "a period is a whole number of seconds")
    return int(given) if len(given) < 10 else MAX_PERIOD_S + 1
