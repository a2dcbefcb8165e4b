"""Rates of puts and gets, computed from two overviews."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from kestrel.tools.top.overview import Overview, QueueSample


@frozen
class QueueRates:
    """The statistics of a queue, with its puts and gets per second, or None for an unknown rate."""

    name: bytes
    now: QueueSample
    puts: float | None
    gets: float | None


def rows(before: Overview | None, now: Overview) -> list[QueueRates]:
    """Return the rates of each queue in `now`. All rates are unknown without a suitable `before`."""
    passed_s = _passed_s(before, now)
    if before is None or passed_s is None:
        return [QueueRates(name, queue, None, None) for name, queue in now.queues.items()]
    return [_row(name, before.queues.get(name), queue, passed_s) for name, queue in now.queues.items()]


def _row(name: bytes, before: QueueSample | None, now: QueueSample, passed_s: float) -> QueueRates:
    # A new queue, or one that was deleted and created again.
    if before is None or now.puts < before.puts or now.gets < before.gets:
        return QueueRates(name, now, now.puts / passed_s, now.gets / passed_s)
    return QueueRates(name, now, (now.puts - before.puts) / passed_s, (now.gets - before.gets) / passed_s)


def _passed_s(before: Overview | None, now: Overview) -> float | None:
    """Return the seconds between two overviews, or None if they are not from the same run of the server."""
    if before is None or now.uptime_ms <= before.uptime_ms:
        return None
    return (now.uptime_ms - before.uptime_ms) / 1000


def total(rates: Iterable[float | None]) -> float | None:
    """Return the sum of rates, or None if one of them is unknown."""
    known = 0.0
    for rate in rates:
        if rate is None:
            return None
        known += rate
    return known
