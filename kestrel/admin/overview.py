"""The data of the dashboard's first page and of `kestrel-cli top`: the server and a row for each queue."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from kestrel.admin.request_response import AdminRequest, AdminResponse, json_bytes, json_list
from kestrel.admin.server_view import ServerView
from kestrel.escaping import show_name
from kestrel.queues.queue import Queue
from kestrel.queues.stat_definitions import ServerSnapshot, server_stats

COLUMNS: Final = (
    "name",
    "items",
    "bytes",
    "mem_items",
    "mem_bytes",
    "age_msec",
    "waiters",
    "open_transactions",
    "journal_bytes",
    "put_items",
    "put_bytes",
    "get_items_hit",
    "get_items_miss",
    "expired_items",
    "discarded",
)

_SUMMED: Final = [
    (COLUMNS.index(column), column) for column in ("mem_bytes", "waiters", "open_transactions", "journal_bytes")
]

QUEUES_PER_PIECE: Final = 64


def overview(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return the server's statistics, and a list of the values of `COLUMNS` for each queue."""
    return AdminResponse(_pieces(server_view, request))


def _pieces(server_view: ServerView, request: AdminRequest) -> Iterator[bytes]:
    totals: Counter[str] = Counter()
    yield json_bytes({"columns": COLUMNS})[:-1] + b',"queues":'
    yield from json_list(_parts(server_view.manager.queues_in_order(), totals))
    snapshot = server_view.snapshot()
    for _ in snapshot.gather():
        yield b""
    yield b',"server":' + json_bytes(_server(server_view, request, snapshot, totals)) + b"}"


def _parts(queues: Iterator[Queue], totals: Counter[str]) -> Iterator[list[list[object]]]:
    while rows := [_row(queue) for queue in islice(queues, QUEUES_PER_PIECE)]:
        for place, column in _SUMMED:
            totals[column] += sum(row[place] for row in rows)
        yield rows


def _row(queue: Queue) -> list[Any]:
    store, counters, histograms = queue.store, queue.counters, queue.histograms
    items = store.items
    return [
        show_name(queue.name),
        items,
        store.bytes,
        store.mem_items,
        store.mem_bytes,
        counters.age_ms if items else 0,
        len(queue.waiters),
        store.open_reads,
        journal_bytes(store.stats),
        histograms.puts,
        histograms.request_size.sum,
        histograms.hits,
        histograms.misses,
        counters.expired_items,
        counters.discarded,
    ]


def journal_bytes(stats: Mapping[str, int]) -> int:
    """Return the bytes of all files of a queue, or `logsize` if its storage does not report them."""
    return stats.get("journal_bytes", stats["logsize"])


def _server(
    server_view: ServerView, request: AdminRequest, snapshot: ServerSnapshot, totals: Counter[str]
) -> dict[str, object]:
    status = server_view.control.status
    told = dict(server_stats(snapshot))
    return {
        "name": socket.gethostname(),
        "version": server_view.control.version,
        "build": told["build"],
        "storage": server_view.storage,
        "status": status.published.value,
        "in_force": status.in_force.value,
        "uptime_ms": int((server_view.seconds() - server_view.started_s) * 1000),
        "time_ms": server_view.manager.now_ms(),
        "may_administer": request.may_administer,
        "peek": server_view.config.admin.peek,
        "max_total_memory": server_view.manager.memory_limit.most_bytes,
        "figures": {
            **{name: value for name, value in told.items() if isinstance(value, int)},
            **totals,
        },
    }
