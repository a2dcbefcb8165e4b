"""What is found where on the admin port."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator

from kestrel.admin import actions, stats
from kestrel.admin.asked import Answer, Asked, Refusal
from kestrel.admin.files import page_file
from kestrel.admin.health import health, ready
from kestrel.admin.history import History, history
from kestrel.admin.listeners import Listeners
from kestrel.admin.metrics import metrics
from kestrel.admin.one_queue import head, one_queue, the_server
from kestrel.admin.overview import overview
from kestrel.admin.watched import Watched

Handler: TypeAlias = Callable[..., "Answer | Deferred[Answer]"]
"""Called with what was asked, and with the parts of the path that it is to know."""

Pages: TypeAlias = Mapping[tuple[bytes, ...], Handler]


class Routes:
    """The handlers of one server, by method and path.

    Kestrel's calls (`/stats.json`, `/ping.txt`) go by their names with an ending or without.
    """

    def __init__(self, watched: Watched, clock: IReactorTime, cooperator: Cooperator) -> None:
        self.history = History(watched.manager, clock, cooperator, lambda: watched.config.admin.max_queue_series)
        self.listeners = Listeners(watched, clock, cooperator)
        self._calls = _for(
            watched,
            {
                "GET": {
                    (b"health",): health,
                    (b"metrics",): metrics,
                    (b"ping",): stats.ping,
                    (b"ready",): ready,
                    (b"server_info",): stats.server_info,
                    (b"stats",): partial(stats.stats, self.listeners),
                    (b"threads",): stats.threads,
                    (b"api", b"overview"): overview,
                    (b"api", b"server"): the_server,
                    (b"api", b"history"): partial(history, self.history),
                },
                "POST": {
                    (b"gc",): actions.collect_garbage,
                    (b"quiesce",): partial(actions.change_status, name=b"Quiescent"),
                    (b"reload",): actions.reload,
                    (b"shutdown",): actions.shutdown,
                    (b"api", b"reload"): actions.reload,
                    (b"api", b"shutdown"): actions.shutdown,
                },
            },
        )
        self._of_queues = _for(
            watched,
            {
                "GET": {(): one_queue, (b"head",): head},
                "POST": {
                    (b"delete",): actions.delete,
                    (b"flush",): actions.flush,
                    (b"flush_expired",): actions.flush_expired,
                },
            },
        )
        self._statuses = _for(watched, {"GET": {}, "POST": {(): actions.change_status}})

    def start(self) -> None:
        """The queues are there: begin to remember."""
        self.history.start()

    def stop(self) -> None:
        """Nothing happens by itself any more."""
        self.history.stop()
        self.listeners.stop()

    def handle(self, asked: Asked) -> Answer | Deferred[Answer]:
        """Answer what was asked; raises `Refusal`."""
        match asked.path:
            case (b"",) | (b"graph" | b"pages", *_):
                return _page(asked)
            case (b"api", b"queue", name, *rest):
                return _of(self._of_queues, asked, tuple(rest))(asked, name)
            case (b"api", b"status", name):
                return _of(self._statuses, asked, ())(asked, name)
            case (call,):
                return _of(self._calls, asked, (call.removesuffix(b".json").removesuffix(b".txt"),))(asked)
        return _of(self._calls, asked, asked.path)(asked)


def _page(asked: Asked) -> Answer:
    """What people look at."""
    _check_method(asked, "GET")
    match asked.path:
        case (b"pages", *path):
            return page_file(asked, *path)
        case (b"graph", *_):
            return Answer((), status=302, headers={"Location": "/"})
    return page_file(asked, b"index.html")


def _for(watched: Watched, handlers: Mapping[str, Pages]) -> Mapping[str, Pages]:
    """The same, of that server."""
    return {
        method: {path: partial(handler, watched) for path, handler in pages.items()}
        for method, pages in handlers.items()
    }


def _of(handlers: Mapping[str, Pages], asked: Asked, path: tuple[bytes, ...]) -> Handler:
    handler = handlers[asked.method].get(path)
    if handler is not None:
        return handler
    other = "POST" if asked.method == "GET" else "GET"
    if path in handlers[other]:
        _check_method(asked, other)
    raise Refusal(404, "there is no such page; / has the dashboard")


def _check_method(asked: Asked, method: str) -> None:
    if asked.method != method:
        raise Refusal(405, f"this is asked for with {method}", {"Allow": "GET, HEAD" if method == "GET" else method})
