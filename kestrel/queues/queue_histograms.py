"""Histograms of a queue: latencies of operations, waiting times and sizes of items."""

from __future__ import annotations

from typing import Final

from kestrel.histogram import Histogram

QUEUE_HISTOGRAM_NAMES: Final = (
    "delivery_latency_msec",
    "get_hit_latency_usec",
    "get_miss_latency_usec",
    "get_timeout_msec",
    "request_size",
    "set_latency_usec",
)
"""The histograms that every queue has."""

STORAGE_HISTOGRAM_NAMES: Final = (
    "fill_readbehind_usec",
    "fsync_delay_usec",
    "journal_rewrite_usec",
    "journal_rotation_usec",
)
"""Histograms of Kestrel's storage.

They are the times for reading items that are only on disk, from a record to its fsync, for rewriting a journal, and for
rotating to a new file.
"""


class QueueHistograms:
    """The histograms of one queue, or of all deleted queues of a server.

    Times are in microseconds, or in milliseconds if the name ends in `_msec`. Sizes are in bytes. A put, and a get
    served at once, take as long as their batch: from its first change until it is committed.
    """

    __slots__ = (
        "by_storage",
        "delivery_latency_msec",
        "get_hit_latency_usec",
        "get_miss_latency_usec",
        "get_timeout_msec",
        "request_size",
        "set_latency_usec",
    )

    def __init__(self) -> None:
        self.set_latency_usec = Histogram()
        """Time until a put is committed."""
        self.get_hit_latency_usec = Histogram()
        """Time until a get has an item, including its wait."""
        self.get_miss_latency_usec = Histogram()
        """Time until a non-blocking get finds the queue empty."""
        self.get_timeout_msec = Histogram()
        """Time that blocking gets without an item waited, in milliseconds."""
        self.delivery_latency_msec = Histogram()
        """Time from the put of an item to each of its gets, in milliseconds."""
        self.request_size = Histogram()
        """Sizes of the items put."""
        self.by_storage: dict[str, Histogram] = {}
        """The storage's own histograms (`IMeasuring`), by name."""

    @property
    def puts(self) -> int:
        return self.request_size.count

    @property
    def hits(self) -> int:
        return self.delivery_latency_msec.count

    @property
    def misses(self) -> int:
        return self.get_miss_latency_usec.count + self.get_timeout_msec.count

    def add_miss(self, waited_s: float, *, is_blocking: bool) -> None:
        if is_blocking:
            self.get_timeout_msec.add(int(waited_s * 1_000))
        else:
            self.get_miss_latency_usec.add(int(waited_s * 1_000_000))

    def add_storage_value(self, what: str, value: int) -> None:
        histogram = self.by_storage.get(what)
        if histogram is None:
            histogram = self.by_storage[what] = Histogram()
        histogram.add(value)

    def all(self) -> dict[str, Histogram]:
        """Return all histograms by Kestrel's names."""
        named = {name: getattr(self, name) for name in QUEUE_HISTOGRAM_NAMES}
        return {**named, **{name: Histogram() for name in STORAGE_HISTOGRAM_NAMES}, **self.by_storage}

    def merge(self, other: QueueHistograms) -> None:
        for name in QUEUE_HISTOGRAM_NAMES:
            getattr(self, name).merge(getattr(other, name))
        for name, histogram in other.by_storage.items():
            self.by_storage.setdefault(name, Histogram()).merge(histogram)
