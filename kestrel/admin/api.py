"""Handlers of `/api`: the data of the dashboard and of `kestrel-cli top`, and changes of the server or a queue.

Each change needs a POST request of an administrator, and writes a log line.
"""

from __future__ import annotations

import base64
import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError, json_bytes, json_list, json_response
from kestrel.admin.server_view import ServerView, add_histograms, summarize_all
from kestrel.errors import UnknownStatus
from kestrel.escaping import count, show_name, show_names
from kestrel.item import Item
from kestrel.queues.flush_expired import ExpiredFlushResult
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.stat_definitions import (
    CHILDREN_PLACEHOLDER,
    QueueSnapshot,
    ServerSnapshot,
    iter_child_batches,
    queue_stats,
    server_stats,
    traffic_stats,
)
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch

log = Logger(__name__)

COLUMNS: Final = (
    "name",
    "items",
    "bytes",
    "mem_items",
    "mem_bytes",
    "age_msec",
    "oldest_age_msec",
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
        queue.oldest_age_ms,
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


SHOWN_BYTES: Final = 4096
"""Number of bytes of the head item that a response contains at most."""


def queue_named(server_view: ServerView, name: bytes) -> Queue:
    """Return the queue `name`. Raise `HttpError` if it does not exist or is an alias."""
    queue = server_view.manager.known(name)
    if queue is None:
        said = show_name(name)
        if name in server_view.manager.aliases:
            raise HttpError(404, f"{said} is an alias, which has no items of its own")
        raise HttpError(404, f"there is no queue {said}")
    return queue


def queue_details(server_view: ServerView, request: AdminRequest, name: bytes) -> AdminResponse:
    """Return the statistics, settings, latencies and children of a queue."""
    queue = queue_named(server_view, name)
    failure = queue.store.failure
    snapshot = QueueSnapshot(queue, (CHILDREN_PLACEHOLDER,) if server_view.manager.children_of(name) else ())
    figures: dict[str, object] = dict([*queue_stats(snapshot), *traffic_stats(snapshot)])
    about = {
        "name": show_name(name),
        "exists": True,
        "figures": figures,
        "settings": dict(next(server_view.control.iter_config([name]))[1]),
        "failure": None if failure is None else str(failure),
        "latencies": summarize_all(queue.histograms),
    }
    return AdminResponse(_queue_pieces(server_view, name, about))


def _queue_pieces(server_view: ServerView, name: bytes, about: Mapping[str, object]) -> Iterator[bytes]:
    # The first placeholder is the value of `children`, because only the queue's name precedes the statistics.
    before, _, after = json_bytes(about)[:-1].partition(json_bytes(CHILDREN_PLACEHOLDER.decode())[1:-1])
    yield before
    comma = b""
    for children in iter_child_batches(server_view.manager, name) if after else ():
        yield comma + json_bytes(show_names(children))[1:-1]
        comma = b","
    yield after
    yield b',"children":'
    pieces = iter_child_batches(server_view.manager, name)
    yield from json_list([show_name(child) for child in children] for children in pieces)
    yield b"}"


def server_details(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return the statistics, settings and latencies of the server."""
    return AdminResponse(_server_pieces(server_view))


def _server_pieces(server_view: ServerView) -> Iterator[bytes]:
    histograms = QueueHistograms()
    for _ in add_histograms(server_view.manager, histograms):
        yield b""
    settings = dict(server_view.core.server_settings())
    snapshot = server_view.snapshot()
    for _ in snapshot.gather():
        yield b""
    figures = dict(server_stats(snapshot))
    yield json_bytes({"figures": figures, "settings": settings, "latencies": summarize_all(histograms)})


def head(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Return the first item of a queue without removing it; of a large item, the first `SHOWN_BYTES` bytes.

    Raises `HttpError` unless the client is an administrator and the setting `peek` allows it.
    """
    if not server_view.config.admin.peek:
        raise HttpError(403, "items are not shown: set peek = true in the table [admin]")
    if not request.may_administer:
        raise HttpError(403, "only an administrator may look at items")
    queue = queue_named(server_view, name)
    answering: Deferred[AdminResponse] = Deferred()

    def known(item: Item | None, error: Exception | None) -> None:
        if error is not None:
            answering.errback(error)
        else:
            answering.callback(
                json_response({"head": None if item is None else _shown(item, server_view.manager.now_ms())})
            )

    waiter = Waiter(known, opens=False, peeks=True, is_blocking=False)
    queue.join(waiter)
    return answering


def _shown(item: Item, now_ms: int) -> dict[str, object]:
    return {
        "bytes": len(item.data),
        "age_msec": max(0, now_ms - item.add_ms),
        "data_base64": base64.b64encode(item.data[:SHOWN_BYTES]).decode("ascii"),
        "is_whole": len(item.data) <= SHOWN_BYTES,
    }


def change_status(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Change the server's status to the one called `name`, such as `ReadOnly`. Raises `HttpError` for other names."""
    try:
        changing = server_view.control.status.change(name)
    except UnknownStatus as error:
        raise HttpError(409, str(error)) from None
    return changing.addCallback(lambda _: _done(f"the status is {server_view.control.status.published.value}"))


def reload(server_view: ServerView, request: AdminRequest) -> Deferred[AdminResponse]:
    """Reload the configuration."""
    return server_view.control.reload().addCallback(lambda _: _done("the configuration was read again"))


def shutdown(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Shut the server down after the response is sent."""
    answer = _done("the server is shutting down")
    return AdminResponse(answer.pieces, answer.content_type, done=server_view.control.shutdown)


def collect_garbage(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Run Python's garbage collector. The server handles no other request meanwhile."""
    return _done(f"{gc.collect()} objects were freed")


def flush(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Delete all items of a queue, except open reads."""
    items = _queue_to_change(server_view, name).store.items
    sentence = f"{count(items, 'item')} of {show_name(name)} {_were(items)} flushed"
    return _when_safe(server_view.manager.flush(name), lambda: sentence)


def delete(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Delete a queue with its items and open reads."""
    _queue_to_change(server_view, name)
    return _when_safe(server_view.manager.delete(name), lambda: f"{show_name(name)} was deleted")


def flush_expired(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Remove the expired items at the head of a queue."""
    _queue_to_change(server_view, name)

    def swept(result: ExpiredFlushResult) -> Deferred[AdminResponse]:
        sentence = f"{count(result.items, 'expired item')} of {show_name(name)} {_were(result.items)} removed"
        return _when_safe(result.batch, lambda: sentence)

    return server_view.manager.flush_expired(name).addCallback(swept)


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _queue_to_change(server_view: ServerView, name: bytes) -> Queue:
    status = server_view.control.status
    if not status.takes_writes:
        raise HttpError(503, f"the server is {status.in_force.value}")
    return queue_named(server_view, name)


def _when_safe(batch: Batch | None, sentence: Callable[[], str]) -> Deferred[AdminResponse]:
    answering: Deferred[AdminResponse] = Deferred()

    def settled() -> None:
        if batch is not None and batch.failure is not None:
            answering.errback(batch.failure)
        else:
            answering.callback(_done(sentence()))

    if batch is None:
        settled()
    else:
        batch.when_settled(settled)
    return answering


def _done(sentence: str) -> AdminResponse:
    log.info("By the admin port: {sentence}", sentence=sentence)
    return json_response({"done": sentence})
