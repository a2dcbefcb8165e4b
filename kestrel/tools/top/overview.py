"""The overview of a server and its queues, as the admin port returns it, and rates computed from two of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from kestrel.escaping import unescape_name

COLUMNS: Final = (
    "items",
    "bytes",
    "mem_bytes",
    "oldest_age_msec",
    "waiters",
    "open_transactions",
    "journal_bytes",
    "put_items",
    "get_items_hit",
)
"""The columns of the response that are used, in the order of the fields of `QueueSample`."""


@frozen
class QueueSample:
    """The statistics of a queue at one moment. `puts` and `gets` count since the queue was created or opened."""

    items: int
    bytes: int
    mem_bytes: int
    oldest_age_ms: int | None
    """Age of the oldest item, or None if it is not known."""
    waiters: int
    open_reads: int
    journal_bytes: int
    puts: int
    gets: int


@frozen
class Overview:
    """The statistics of a server and its queues at one moment. `uptime_ms` is monotonic while the server runs."""

    name: str
    version: str
    build: str
    storage: str
    status: str
    in_force: str
    uptime_ms: int
    figures: Mapping[str, int]
    queues: Mapping[bytes, QueueSample]


def parse_overview(body: bytes) -> Overview:
    """Return the overview in a response to ``/api/overview``. Raise ValueError if it is invalid."""
    try:
        told = json.loads(body)
        server = told["server"]
        columns: list[str] = told["columns"]
        places = [columns.index(column) for column in COLUMNS]
        name_at = columns.index("name")
        return Overview(
            name=_text(server["name"]),
            version=_text(server["version"]),
            build=_text(server["build"]),
            storage=_text(server["storage"]),
            status=_text(server["status"]),
            in_force=_text(server["in_force"]),
            uptime_ms=_number(server["uptime_ms"]),
            figures={name: value for name, value in server["figures"].items() if type(value) is int},
            queues={
                unescape_name(row[name_at].encode()): _sample([row[place] for place in places])
                for row in told["queues"]
            },
        )
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        raise ValueError("its response is not an overview of queues") from None


_MAY_BE_UNKNOWN: Final = COLUMNS.index("oldest_age_msec")


def _sample(figures: Sequence[Any]) -> QueueSample:
    for place, figure in enumerate(figures):
        if figure is not None or place != _MAY_BE_UNKNOWN:
            _number(figure)
    return QueueSample(*figures)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


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
