"""What the admin port changes. Each is a POST of an administrator, and stands in the log."""

from __future__ import annotations

import gc
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kestrel.admin.asked import Answer, Asked, Refusal, as_json
from kestrel.admin.one_queue import queue_named
from kestrel.admin.watched import Watched
from kestrel.errors import UnknownStatus
from kestrel.queues.flush_expired import ExpiredFlushResult
from kestrel.storage.barrier import Batch

log = Logger(__name__)


def change_status(watched: Watched, asked: Asked, name: bytes) -> Deferred[Answer]:
    """Change the status to the one of that name."""
    try:
        changing = watched.control.status.change(name)
    except UnknownStatus as error:
        raise Refusal(409, str(error)) from None
    return changing.addCallback(lambda _: _done(f"the status is {watched.control.status.published.value}"))


def reload(watched: Watched, asked: Asked) -> Deferred[Answer]:
    """Read the configuration again."""
    return watched.control.reload().addCallback(lambda _: _done("the configuration was read again"))


def shutdown(watched: Watched, asked: Asked) -> Answer:
    """Stop the server in order."""
    answer = _done("the server stops")
    return Answer(answer.pieces, answer.content_type, done=watched.control.shutdown)


def collect_garbage(watched: Watched, asked: Asked) -> Answer:
    """Have Python look for memory that nobody uses. It keeps everybody waiting meanwhile."""
    return _done(f"{gc.collect()} objects were let go")


def flush(watched: Watched, asked: Asked, name: bytes) -> Deferred[Answer]:
    """Drop all items of a queue."""
    _check_change(watched)
    items = queue_named(watched, name).store.items
    return _when_safe(
        watched.manager.flush(name), lambda: f"{name.decode('latin-1')} was flushed of {items} items"
    )


def delete(watched: Watched, asked: Asked, name: bytes) -> Deferred[Answer]:
    """Forget a queue."""
    _check_change(watched)
    queue_named(watched, name)
    return _when_safe(watched.manager.delete(name), lambda: f"{name.decode('latin-1')} was deleted")


def flush_expired(watched: Watched, asked: Asked, name: bytes) -> Deferred[Answer]:
    """Drop the expired items of a queue."""
    _check_change(watched)
    queue_named(watched, name)

    def swept(result: ExpiredFlushResult) -> Deferred[Answer]:
        return _when_safe(result.batch, lambda: f"{result.items} items of {name.decode('latin-1')} had expired")

    return watched.manager.flush_expired(name).addCallback(swept)


def _check_change(watched: Watched) -> None:
    status = watched.control.status
    if not status.takes_writes:
        raise Refusal(503, f"the server is {status.in_force.value}")


def _when_safe(batch: Batch | None, sentence: Callable[[], str]) -> Deferred[Answer]:
    answering: Deferred[Answer] = Deferred()

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


def _done(sentence: str) -> Answer:
    log.info("By the admin port: {sentence}", sentence=sentence)
    return as_json({"done": sentence})
