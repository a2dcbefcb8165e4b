"""Handlers that return all details of one queue or of the server."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Final

from twisted.internet.defer import Deferred

from kestrel.admin.histogram_summary import add_histograms, summarize_all
from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError, json_bytes, json_list, json_response
from kestrel.admin.server_view import ServerView
from kestrel.escaping import show_name, show_names
from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.stat_definitions import QueueSnapshot, queue_stats, server_stats, traffic_stats
from kestrel.queues.stats import CHILDREN_PLACEHOLDER, iter_child_batches
from kestrel.queues.waiters import Waiter

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
