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
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.admin.request_response import (
    MAX_DIGITS,
    AdminRequest,
    AdminResponse,
    HttpError,
    json_bytes,
    json_list,
    json_response,
)
from kestrel.admin.server_view import ServerView, add_histograms, summarize_all
from kestrel.errors import ClientError, UnknownStatus
from kestrel.escaping import count, show_name, show_names
from kestrel.item import Item
from kestrel.queues.flush_expired import ExpiredFlushResult
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.stat_definitions import (
    CHILDREN_PLACEHOLDER,
    QueueSnapshot,
    iter_child_batches,
    queue_stats,
    server_stats,
    traffic_stats,
)
from kestrel.queues.transfer import Transfer
from kestrel.queues.waiters import Waiter
from kestrel.storage.barrier import Batch
from kestrel.storage.interfaces import IBrowsing

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
    """Return the server's statistics, and a list of the values of `COLUMNS` for each queue.

    With the parameter `queue`, add the details of that queue from the same moment as its row. With `server`, add the
    details of the server, with the same statistics. So all figures of a page are from one response.
    """
    return AdminResponse(_Overview(server_view, request).pieces())


class _Overview:
    """The parts of one overview."""

    def __init__(self, server_view: ServerView, request: AdminRequest) -> None:
        self._server_view = server_view
        self._request = request
        self._name = request.one("queue")
        self._queue: Mapping[str, object] | None = None
        """The details of the queue `_name`."""
        self._totals: Counter[str] = Counter()

    def pieces(self) -> Iterator[bytes]:
        server_view, name = self._server_view, self._name
        yield json_bytes({"columns": COLUMNS})[:-1] + b',"queues":'
        yield from json_list(self._rows(server_view.manager.queues_in_order()))
        if name is not None:
            yield b',"queue":'
            if self._queue is None:
                yield json_bytes({"error": _why_there_is_no_queue(server_view, name)})
            else:
                yield from _queue_pieces(server_view, name, self._queue)
        snapshot = server_view.snapshot()
        for _ in snapshot.gather():
            yield b""
        figures = dict(server_stats(snapshot))
        yield b',"server":' + json_bytes(_server(server_view, self._request, figures, self._totals))
        if self._request.one("server") is not None:
            yield b',"details":'
            yield from _server_pieces(server_view, figures)
        yield b"}"

    def _rows(self, queues: Iterator[Queue]) -> Iterator[list[list[object]]]:
        while some := list(islice(queues, QUEUES_PER_PIECE)):
            rows = [_row(queue) for queue in some]
            for place, column in _SUMMED:
                self._totals[column] += sum(row[place] for row in rows)
            for queue in some:
                if queue.name == self._name:
                    self._queue = _about(self._server_view, queue)
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
    server_view: ServerView, request: AdminRequest, figures: Mapping[str, object], totals: Counter[str]
) -> dict[str, object]:
    status = server_view.control.status
    return {
        "name": socket.gethostname(),
        "version": server_view.control.version,
        "build": figures["build"],
        "storage": server_view.storage,
        "status": status.published.value,
        "in_force": status.in_force.value,
        "uptime_ms": int((server_view.seconds() - server_view.started_s) * 1000),
        "time_ms": server_view.manager.now_ms(),
        "may_administer": request.may_administer,
        "peek": server_view.config.admin.peek,
        "has_tokens": bool(server_view.config.admin.token_digests),
        "max_total_memory": server_view.manager.memory_limit.most_bytes,
        "figures": {
            **{name: value for name, value in figures.items() if isinstance(value, int)},
            **totals,
        },
    }


ITEMS_PER_RESPONSE: Final = 20
SHOWN_BYTES: Final = 4096
"""Number of bytes of an item that a response contains at most."""


def queue_named(server_view: ServerView, name: bytes) -> Queue:
    """Return the queue `name`. Raise `HttpError` if it does not exist or is an alias."""
    queue = server_view.manager.known(name)
    if queue is None:
        raise HttpError(404, _why_there_is_no_queue(server_view, name))
    return queue


def _why_there_is_no_queue(server_view: ServerView, name: bytes) -> str:
    if name in server_view.manager.aliases:
        return f"{show_name(name)} is an alias, which has no items of its own"
    return f"there is no queue {show_name(name)}"


def queue_details(server_view: ServerView, request: AdminRequest, name: bytes) -> AdminResponse:
    """Return the statistics, settings, latencies, children and last move of a queue."""
    about = _about(server_view, queue_named(server_view, name))
    return AdminResponse(_queue_pieces(server_view, name, about))


def _about(server_view: ServerView, queue: Queue) -> Mapping[str, object]:
    name, failure = queue.name, queue.store.failure
    snapshot = QueueSnapshot(queue, (CHILDREN_PLACEHOLDER,) if server_view.manager.children_of(name) else ())
    figures: dict[str, object] = dict([*queue_stats(snapshot), *traffic_stats(snapshot)])
    return {
        "name": show_name(name),
        "exists": True,
        "figures": figures,
        "settings": dict(next(server_view.control.iter_config([name]))[1]),
        "failure": None if failure is None else str(failure),
        "latencies": summarize_all(queue.histograms),
        "move": _described(server_view.transfers.of(name)),
    }


def _queue_pieces(server_view: ServerView, name: bytes, about: Mapping[str, object]) -> Iterator[bytes]:
    whole = json_bytes(about)[:-1]
    before, after = whole, b""
    if server_view.manager.children_of(name):
        # The first placeholder is the value of `children`, because only the queue's name precedes the statistics.
        before, _, after = whole.partition(json_bytes(CHILDREN_PLACEHOLDER.decode())[1:-1])
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
    return AdminResponse(_gathered(server_view))


def _gathered(server_view: ServerView) -> Iterator[bytes]:
    snapshot = server_view.snapshot()
    for _ in snapshot.gather():
        yield b""
    yield from _server_pieces(server_view, dict(server_stats(snapshot)))


def _server_pieces(server_view: ServerView, figures: Mapping[str, object]) -> Iterator[bytes]:
    histograms = QueueHistograms()
    for _ in add_histograms(server_view.manager, histograms):
        yield b""
    settings = dict(server_view.core.server_settings())
    yield json_bytes({"figures": figures, "settings": settings, "latencies": summarize_all(histograms)})


def items(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Return `ITEMS_PER_RESPONSE` items of a queue from position `first` on, without removing them.

    Only items in memory are returned, and of a large item only the first `SHOWN_BYTES` bytes. Raises `HttpError` unless
    the client is an administrator and the setting `peek` allows it.
    """
    if not server_view.config.admin.peek:
        raise HttpError(403, "items are not shown: set peek = true in the table [admin]")
    if not request.may_administer:
        raise HttpError(403, "only an administrator may look at items")
    first = request.number("first", 0)
    queue = queue_named(server_view, name)
    answering: Deferred[AdminResponse] = Deferred()

    def known(head: Item | None, error: Exception | None) -> None:
        if error is not None:
            answering.errback(error)
            return
        store, now_ms = queue.store, server_view.manager.now_ms()
        browsing = cast("IBrowsing | None", IBrowsing(store, None))
        found: list[Item] = [] if head is None else [head][first:]
        if browsing is not None:
            found = browsing.browse(first, ITEMS_PER_RESPONSE)
        shown = [_shown(item, now_ms) for item in found]
        answering.callback(
            json_response({"first": first, "items": shown, "in_memory": store.mem_items, "total": store.items})
        )

    # A peek removes expired items, and reads the head if it is only on disk.
    queue.join(Waiter(known, opens=False, peeks=True, is_blocking=False))
    return answering


def _shown(item: Item, now_ms: int) -> dict[str, object]:
    return {
        "bytes": len(item.data),
        "age_msec": max(0, now_ms - item.add_ms),
        "expires_msec": item.expiry_ms - now_ms if item.expiry_ms else None,
        "errors": item.errors,
        "data_base64": base64.b64encode(item.data[:SHOWN_BYTES]).decode("ascii"),
        "is_whole": len(item.data) <= SHOWN_BYTES,
    }


def put(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Put the body of the request as an item to a queue or alias. It expires after `expiry_ms` milliseconds, if given.

    A missing queue is created. Raises `HttpError` if the name is invalid or a limit refuses the item.
    """
    _check_takes_writes(server_view)
    manager, shown = server_view.manager, show_name(name)
    expiry_ms = request.number("expiry_ms", 0)
    manager.counters.cmd_set += 1
    try:
        batch = manager.put(name, request.body, expiry_ms and manager.now_ms() + expiry_ms)
    except ClientError as error:
        raise HttpError(400, str(error)) from None
    if batch is None:
        raise HttpError(409, f"{shown} does not accept the item, because of a limit in its settings")
    return _when_safe(batch, lambda: f"{count(len(request.body), 'byte')} {_were(len(request.body))} put to {shown}")


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


MAX_MOVED_ITEMS: Final = 10**MAX_DIGITS


def move(server_view: ServerView, request: AdminRequest, name: bytes) -> AdminResponse:
    """Begin to move `items` items, by default all of them, from a queue to the queue or alias `to`.

    Raises `HttpError` if `to` is missing, items of the queue are moving already, or `to` cannot take them.
    """
    source, target = _queue_to_change(server_view, name), request.one("to")
    if not target:
        raise HttpError(400, "the query needs to=QUEUE, the queue to move the items to")
    try:
        transfer = server_view.transfers.start(source, target, request.number("items", MAX_MOVED_ITEMS))
    except ClientError as error:
        raise HttpError(409, str(error)) from None
    items = count(transfer.items, "item")
    return _done(f"the move of {items} from {show_name(name)} to {show_name(target)} has begun")


def stop_move(server_view: ServerView, request: AdminRequest, name: bytes) -> AdminResponse:
    """Stop moving items from a queue. Items that are being put still arrive, and the others go back."""
    transfer = server_view.transfers.of(name)
    if transfer is None or not transfer.is_running:
        raise HttpError(409, f"no items of {show_name(name)} are moving")
    transfer.stop("it was stopped")
    return _done(f"the move from {show_name(name)} to {show_name(transfer.target)} was stopped")


def _described(transfer: Transfer | None) -> dict[str, object] | None:
    if transfer is None:
        return None
    return {
        "to": show_name(transfer.target),
        "items": transfer.items,
        "moved": transfer.moved,
        "is_running": transfer.is_running,
        "reason": transfer.reason,
        "delay": transfer.delay,
    }


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _queue_to_change(server_view: ServerView, name: bytes) -> Queue:
    _check_takes_writes(server_view)
    return queue_named(server_view, name)


def _check_takes_writes(server_view: ServerView) -> None:
    if not server_view.is_ready():
        raise HttpError(503, "the server is loading its queues, or stops")
    status = server_view.control.status
    if not status.takes_writes:
        raise HttpError(503, f"the server is {status.in_force.value}")


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
