"""How fast items come and go: two answers of a server make a row for each queue."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from kestrel.tools.top.overview import Overview, QueueSample


@frozen
class QueueRates:
    """A queue, and what was put and taken a second; None where nobody can know."""

    name: bytes
    now: QueueSample
    puts: float | None
    gets: float | None


def rows(before: Overview | None, now: Overview) -> list[QueueRates]:
    """A row for each queue that there is now."""
    passed_s = _passed_s(before, now)
    if before is None or passed_s is None:
        return [QueueRates(name, queue, None, None) for name, queue in now.queues.items()]
    return [_row(name, before.queues.get(name), queue, passed_s) for name, queue in now.queues.items()]


def _row(name: bytes, before: QueueSample | None, now: QueueSample, passed_s: float) -> QueueRates:
    if before is None or now.puts < before.puts or now.gets < before.gets:  # made anew, since then
        return QueueRates(name, now, now.puts / passed_s, now.gets / passed_s)
    return QueueRates(name, now, (now.puts - before.puts) / passed_s, (now.gets - before.gets) / passed_s)


def _passed_s(before: Overview | None, now: Overview) -> float | None:
    """The time between two answers of one run of the server; None if that is not what they are."""
    if before is None or now.uptime_ms <= before.uptime_ms:
        return None
    return (now.uptime_ms - before.uptime_ms) / 1000


def total(rates: Iterable[float | None]) -> float | None:
    """Their sum; None if one of them is not known."""
    known = 0.0
    for rate in rates:
        if rate is None:
            return None
        known += rate
    return known
