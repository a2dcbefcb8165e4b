"""Measurements of a run."""

from __future__ import annotations

from kestrel.histogram import Histogram


class RequestStats:
    """Statistics of one kind of request: number, sizes and latencies. Times are from a monotonic clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.items = 0
        self.bytes = 0
        self.latency_us = Histogram()
        """Latencies from request to answer, in microseconds."""
        self.journal_bytes: int | None = None
        """Size of the queue's journal after these requests, if it was measured."""
        self._began_s = 0.0
        self._ended_s = 0.0

    def add(self, size: int, began_s: float, ended_s: float) -> None:
        """Record an answered request that moved `size` bytes of data."""
        if not self.items or began_s < self._began_s:
            self._began_s = began_s
        self._ended_s = max(self._ended_s, ended_s)
        self.items += 1
        self.bytes += size
        self.latency_us.add(round((ended_s - began_s) * 1_000_000))

    @property
    def seconds(self) -> float:
        """Seconds from the first request to the last answer."""
        return self._ended_s - self._began_s


class RunStats:
    """Statistics, counts and outcome of a run."""

    def __init__(self) -> None:
        self.request_stats_list: list[RequestStats] = []
        self.counts: dict[str, int] = {}
        """Other counts by name, such as ``stored``. Those of errors, such as ``missing``, are 0 in a good run."""
        self.remarks: list[str] = []
        """Further remarks for the verdict."""
        self.is_interrupted = False
        self.is_left = False
        """True if restoring the queues failed, so that some may be left on the server."""
        self.failure: str | None = None
        """Message of the failure that ended the run, if any."""

    def request_stats(self, name: str) -> RequestStats:
        """Add and return the statistics of a new kind of request."""
        request_stats = RequestStats(name)
        self.request_stats_list.append(request_stats)
        return request_stats

    @property
    def wrong(self) -> int:
        """Number of doubled, spoiled, refused and missing items.

        After an interruption or failure, missing items do not count.
        """
        wrong = ["doubled", "spoiled", "refused"] + ([] if self.is_interrupted or self.failure else ["missing"])
        return sum(self.counts.get(name, 0) for name in wrong)
