"""One queue in full, and the server in full."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Final

from twisted.internet.defer import Deferred

from kestrel.admin.asked import Answer, Asked, Refusal, as_json, json_bytes, json_list
from kestrel.admin.summary import summaries, summing
from kestrel.admin.watched import Watched
from kestrel.escaping import show_names
from kestrel.item import Item
from kestrel.queues.queue import Queue
from kestrel.queues.queue_histograms import QueueHistograms
from kestrel.queues.stat_definitions import QueueSnapshot, queue_stats, server_stats, traffic_stats
from kestrel.queues.stats import CHILDREN_PLACEHOLDER, iter_child_batches
from kestrel.queues.waiters import Waiter

SHOWN_BYTES: Final = 4096
"""Of a head that is looked at."""


def queue_named(watched: Watched, name: bytes) -> Queue:
    """The queue of that name; raises `Refusal` where there is none."""
    queue = watched.manager.known(name)
    if queue is None:
        said = name.decode("latin-1")
        if name in watched.manager.aliases:
            raise Refusal(404, f"{said} is an alias, which holds nothing itself")
        raise Refusal(404, f"there is no queue {said}")
    return queue


def one_queue(watched: Watched, asked: Asked, name: bytes) -> Answer:
    """Return all that is known of a queue."""
    queue = queue_named(watched, name)
    failure = queue.store.failure
    sight = QueueSnapshot(queue, (CHILDREN_PLACEHOLDER,) if watched.manager.children_of(name) else ())
    figures: dict[str, object] = dict([*queue_stats(sight), *traffic_stats(sight)])
    about = {
        "name": name.decode("latin-1"),
        "exists": True,
        "figures": figures,
        "settings": dict(next(watched.control.iter_config([name]))[1]),
        "failure": None if failure is None else str(failure),
        "latencies": summaries(queue.histograms),
    }
    return Answer(_queue_pieces(watched, name, about))


def _queue_pieces(watched: Watched, name: bytes, about: Mapping[str, object]) -> Iterator[bytes]:
    # The first mark is the figure `children`, if there are any: only the queue's name comes before the figures.
    before, _, after = json_bytes(about)[:-1].partition(json_bytes(CHILDREN_PLACEHOLDER.decode())[1:-1])
    yield before
    comma = b""
    for children in iter_child_batches(watched.manager, name) if after else ():
        yield comma + json_bytes(show_names(children))[1:-1]
        comma = b","
    yield after
    yield b',"children":'
    pieces = iter_child_batches(watched.manager, name)
    yield from json_list([child.decode("latin-1") for child in children] for children in pieces)
    yield b"}"


def the_server(watched: Watched, asked: Asked) -> Answer:
    """All that is known of the server."""
    return Answer(_server_pieces(watched))


def _server_pieces(watched: Watched) -> Iterator[bytes]:
    histograms = QueueHistograms()
    for _ in summing(watched.manager, histograms):
        yield b""
    settings = dict(watched.core.server_settings())
    sight = watched.sight()
    for _ in sight.gather():
        yield b""
    figures = dict(server_stats(sight))
    yield json_bytes({"figures": figures, "settings": settings, "latencies": summaries(histograms)})


def head(watched: Watched, asked: Asked, name: bytes) -> Deferred[Answer]:
    """The first item of a queue, or the beginning of it; it stays where it is."""
    if not watched.config.admin.peek:
        raise Refusal(403, "items are not shown: set peek = true in the table [admin]")
    if not asked.may_administer:
        raise Refusal(403, "only an administrator may look at items")
    queue = queue_named(watched, name)
    answering: Deferred[Answer] = Deferred()

    def known(item: Item | None, error: Exception | None) -> None:
        if error is not None:
            answering.errback(error)
        else:
            answering.callback(as_json({"head": None if item is None else _shown(item, watched.manager.now_ms())}))

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
