"""What the admin port tells of a server and its queues, as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from kestrel.escaping import unescape_name

COLUMNS: Final = (
    "items",
    "bytes",
    "mem_bytes",
    "age_msec",
    "waiters",
    "open_transactions",
    "journal_bytes",
    "put_items",
    "get_items_hit",
)
"""What is looked at of a queue."""


@frozen
class QueueSample:
    """A queue as it is now. `puts` and `gets` count from when it was made, or opened."""

    items: int
    bytes: int
    mem_bytes: int
    age_ms: int
    waiters: int
    open_reads: int
    journal_bytes: int
    puts: int
    gets: int


@frozen
class Overview:
    """A server as it is now. `uptime_ms` is a clock that never goes back while the server runs."""

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
    """The answer to ``/api/overview``. Raises ValueError for what is none."""
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
                unescape_name(row[name_at].encode()): QueueSample(*[_number(row[place]) for place in places])
                for row in told["queues"]
            },
        )
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
        raise ValueError("what it answers is no overview of queues") from None


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
