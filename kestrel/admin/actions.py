"""Handlers that change the server or a queue. Each needs a POST request of an administrator, and writes a log line."""

from __future__ import annotations

import gc
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.admin.api import queue_named
from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError, json_response
from kestrel.admin.server_view import ServerView
from kestrel.errors import UnknownStatus
from kestrel.escaping import show_name
from kestrel.queues.flush_expired import ExpiredFlushResult
from kestrel.storage.barrier import Batch

log = Logger(__name__)


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
    _check_change(server_view)
    items = queue_named(server_view, name).store.items
    return _when_safe(server_view.manager.flush(name), lambda: f"{items} items of {show_name(name)} were flushed")


def delete(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Delete a queue with its items and open reads."""
    _check_change(server_view)
    queue_named(server_view, name)
    return _when_safe(server_view.manager.delete(name), lambda: f"{show_name(name)} was deleted")


def flush_expired(server_view: ServerView, request: AdminRequest, name: bytes) -> Deferred[AdminResponse]:
    """Remove the expired items at the head of a queue."""
    _check_change(server_view)
    queue_named(server_view, name)

    def swept(result: ExpiredFlushResult) -> Deferred[AdminResponse]:
        return _when_safe(result.batch, lambda: f"{result.items} expired items of {show_name(name)} were removed")

    return server_view.manager.flush_expired(name).addCallback(swept)


def _check_change(server_view: ServerView) -> None:
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
