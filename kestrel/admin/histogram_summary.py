"""Summaries of histograms, in the form in which Kestrel's admin port returns them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kestrel.histogram import Histogram
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue_histograms import QueueHistograms

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p9999": 0.9999}

_SHARES: Final = tuple(QUANTILES.values())


def summarize(histogram: Histogram) -> dict[str, int]:
    """Return count, sum, average, minimum, maximum and quantiles of a histogram; only the count if it is empty."""
    if not histogram.count:
        return {"count": 0}
    return {
        "average": histogram.sum // histogram.count,
        "count": histogram.count,
        "maximum": histogram.maximum,
        "minimum": histogram.minimum,
        **dict(zip(QUANTILES, histogram.quantiles(_SHARES), strict=True)),
        "sum": histogram.sum,
    }


def summarize_all(histograms: QueueHistograms) -> dict[str, dict[str, int]]:
    """Return the summary of each histogram, by Kestrel's names."""
    return {name: summarize(histogram) for name, histogram in histograms.all().items()}


def add_histograms(manager: QueueManager, total: QueueHistograms) -> Iterator[None]:
    """Add the histograms of all queues, existing and deleted, to `total`. Yield after each queue."""
    # Both are read at the same moment, so that a queue that is deleted later is counted once.
    of_queues = [queue.histograms for queue in manager.queues_including_masked()]
    total.merge(manager.deleted_queue_histograms)
    for histograms in of_queues:
        total.merge(histograms)
        yield None
