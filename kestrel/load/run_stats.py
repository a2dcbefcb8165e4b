"""What a run has measured."""

from __future__ import annotations

from kestrel.histogram import Histogram


class RequestStats:
    """One kind of request: how many, how large, how long each took. Times are those of a clock that never goes back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.items = 0
        self.bytes = 0
        self.latency_us = Histogram()
        """From the request to its answer."""
        self.journal_bytes: int | None = None
        """Of the queue's journal after it, where somebody looked."""
        self._began_s = 0.0
        self._ended_s = 0.0

    def add(self, size: int, began_s: float, ended_s: float) -> None:
        """One was answered, and moved so many bytes of data."""
        if not self.items or began_s < self._began_s:
            self._began_s = began_s
        self._ended_s = max(self._ended_s, ended_s)
        self.items += 1
        self.bytes += size
        self.latency_us.add(round((ended_s - began_s) * 1_000_000))

    @property
    def seconds(self) -> float:
        """From the first request to the last answer."""
        return self._ended_s - self._began_s


class RunStats:
    """All that is told of a run."""

    def __init__(self) -> None:
        self.request_stats_list: list[RequestStats] = []
        self.counts: dict[str, int] = {}
        """What else there was, by its name: what is wrong is among it, as a number that is not 0."""
        self.remarks: list[str] = []
        """Sentences."""
        self.is_interrupted = False
        self.is_left = False
        """Whether queues of the run are left on the server."""
        self.failure: str | None = None
        """Why the run could not go on."""

    def request_stats(self, name: str) -> RequestStats:
        """A new one."""
        request_stats = RequestStats(name)
        self.request_stats_list.append(request_stats)
        return request_stats

    @property
    def wrong(self) -> int:
        """How much is not as it must be. What an interrupted run has not taken yet is not missing."""
        wrong = ["doubled", "spoiled", "refused"] + ([] if self.is_interrupted or self.failure else ["missing"])
        return sum(self.counts.get(name, 0) for name in wrong)
