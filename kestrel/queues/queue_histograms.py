"""What is measured of queues: how long their operations take, how long items wait, how large they are."""

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
"""What every queue measures itself."""

STORAGE_HISTOGRAM_NAMES: Final = (
    "fill_readbehind_usec",
    "fsync_delay_usec",
    "journal_rewrite_usec",
    "journal_rotation_usec",
)
"""What Kestrel's storage measures: reading what is on disk alone, the time from a record to the sync that makes it
safe, writing a journal anew, and going over to a new file."""


class QueueHistograms:
    """Of one queue, or of all that a server has had.

    Times of operations are microseconds, sizes are bytes. A put or a get at once has taken as long as the batch that
    it is part of: from the first change of the batch until it was safe.
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
        """Until an item that was put is safe."""
        self.get_hit_latency_usec = Histogram()
        """Until who asked for an item has one, the time in line among it."""
        self.get_miss_latency_usec = Histogram()
        """Until it is known that there is none, for those who do not wait for one."""
        self.get_timeout_msec = Histogram()
        """How long those waited, in milliseconds, who had none in the end."""
        self.delivery_latency_msec = Histogram()
        """From the put of an item to its get, in milliseconds; for each get of it, if it came back."""
        self.request_size = Histogram()
        """Items that were put."""
        self.by_storage: dict[str, Histogram] = {}
        """What the storage measures (`IMeasuring`), by name."""

    @property
    def puts(self) -> int:
        """How many items were put."""
        return self.request_size.count

    @property
    def hits(self) -> int:
        """How many items were taken."""
        return self.delivery_latency_msec.count

    @property
    def misses(self) -> int:
        """How often there was none for who asked."""
        return self.get_miss_latency_usec.count + self.get_timeout_msec.count

    def add_miss(self, waited_s: float, *, is_blocking: bool) -> None:
        """Somebody who asked for an item has none."""
        if is_blocking:
            self.get_timeout_msec.add(int(waited_s * 1_000))
        else:
            self.get_miss_latency_usec.add(int(waited_s * 1_000_000))

    def add_storage_value(self, what: str, value: int) -> None:
        """The storage has measured that."""
        histogram = self.by_storage.get(what)
        if histogram is None:
            histogram = self.by_storage[what] = Histogram()
        histogram.add(value)

    def all(self) -> dict[str, Histogram]:
        """All of them by name: Kestrel's names."""
        named = {name: getattr(self, name) for name in QUEUE_HISTOGRAM_NAMES}
        return {**named, **{name: Histogram() for name in STORAGE_HISTOGRAM_NAMES}, **self.by_storage}

    def merge(self, other: QueueHistograms) -> None:
        """All that the other has was measured here as well."""
        for name in QUEUE_HISTOGRAM_NAMES:
            getattr(self, name).merge(getattr(other, name))
        for name, histogram in other.by_storage.items():
            self.by_storage.setdefault(name, Histogram()).merge(histogram)
