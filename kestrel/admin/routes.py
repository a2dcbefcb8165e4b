"""The routes of the admin port: which handler answers which method and path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator

from kestrel.admin import api, stats
from kestrel.admin.history import StatsHistory, history
from kestrel.admin.interval_stats import IntervalStats
from kestrel.admin.metrics import metrics
from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError
from kestrel.admin.server_view import ServerView

Handler: TypeAlias = Callable[..., "AdminResponse | Deferred[AdminResponse]"]
"""A handler, called with the request and with the variable parts of its path."""

Pages: TypeAlias = Mapping[tuple[bytes, ...], Handler]


class Routes:
    """The handlers of one server, by method and path.

    Kestrel's calls (`/stats`, `/ping`) may end in `.json` or `.txt`.
    """

    def __init__(self, server_view: ServerView, clock: IReactorTime, cooperator: Cooperator) -> None:
        self.history = StatsHistory(
            server_view.manager, clock, cooperator, lambda: server_view.config.admin.max_queue_series
        )
        self.interval_stats = IntervalStats(server_view, clock, cooperator)
        self._calls = _for(
            server_view,
            {
                "GET": {
                    (b"health",): stats.health,
                    (b"metrics",): metrics,
                    (b"ping",): stats.ping,
                    (b"ready",): stats.ready,
                    (b"server_info",): stats.server_info,
                    (b"stats",): partial(stats.stats, self.interval_stats),
                    (b"threads",): stats.threads,
                    (b"api", b"overview"): api.overview,
                    (b"api", b"server"): api.server_details,
                    (b"api", b"history"): partial(history, self.history),
                },
                "POST": {
                    (b"gc",): api.collect_garbage,
                    (b"quiesce",): partial(api.change_status, name=b"Quiescent"),
                    (b"reload",): api.reload,
                    (b"shutdown",): api.shutdown,
                    (b"api", b"reload"): api.reload,
                    (b"api", b"shutdown"): api.shutdown,
                },
            },
        )
        self._of_queues = _for(
            server_view,
            {
                "GET": {(): api.queue_details, (b"head",): api.head},
                "POST": {
                    (b"delete",): api.delete,
                    (b"flush",): api.flush,
                    (b"flush_expired",): api.flush_expired,
                },
            },
        )
        self._statuses = _for(server_view, {"GET": {}, "POST": {(): api.change_status}})

    def start(self) -> None:
        """Start to sample the history. Called when the queues are loaded."""
        self.history.start()

    def stop(self) -> None:
        """Stop the timers of the history and of the periods."""
        self.history.stop()
        self.interval_stats.stop()

    def handle(self, request: AdminRequest) -> AdminResponse | Deferred[AdminResponse]:
        """Return the response to a request, or a Deferred of it. Raise `HttpError` if the request is refused or its
        path does not exist.
        """
        match request.path:
            case (b"",) | (b"graph" | b"pages", *_):
                return _page(request)
            case (b"api", b"queue", name, *rest):
                return _of(self._of_queues, request, tuple(rest))(request, name)
            case (b"api", b"status", name):
                return _of(self._statuses, request, ())(request, name)
            case (call,):
                return _of(self._calls, request, (call.removesuffix(b".json").removesuffix(b".txt"),))(request)
        return _of(self._calls, request, request.path)(request)


def _page(request: AdminRequest) -> AdminResponse:
    """Return a file of the dashboard, or redirect Kestrel's `/graph` to it."""
    _check_method(request, "GET")
    match request.path:
        case (b"pages", *path):
            return static_file(request, *path)
        case (b"graph", *_):
            return AdminResponse((), status=302, headers={"Location": "/"})
    return static_file(request, b"index.html")


def _for(server_view: ServerView, handlers: Mapping[str, Pages]) -> Mapping[str, Pages]:
    """Return `handlers` with `server_view` bound as their first argument."""
    return {
        method: {path: partial(handler, server_view) for path, handler in pages.items()}
        for method, pages in handlers.items()
    }


def _of(handlers: Mapping[str, Pages], request: AdminRequest, path: tuple[bytes, ...]) -> Handler:
    handler = handlers[request.method].get(path)
    if handler is not None:
        return handler
    other = "POST" if request.method == "GET" else "GET"
    if path in handlers[other]:
        _check_method(request, other)
    raise HttpError(404, "there is no such page; / has the dashboard")


def _check_method(request: AdminRequest, method: str) -> None:
    if request.method != method:
        raise HttpError(405, f"this path needs {method}", {"Allow": "GET, HEAD" if method == "GET" else method})


PIECE_BYTES: Final = 64 * 1024

_TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def _all_files() -> Mapping[tuple[str, ...], bytes]:
    """Return the contents of all files of the dashboard, by the parts of their paths."""
    found: dict[tuple[str, ...], bytes] = {}

    def look(folder: Traversable, path: tuple[str, ...]) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                look(each, (*path, each.name))
            elif each.name.rpartition(".")[2] in _TYPES:
                found[*path, each.name] = each.read_bytes()

    look(files("kestrel.admin") / "pages", ())
    return found


def static_file(request: AdminRequest, *path: bytes) -> AdminResponse:
    """Return a file of the dashboard. Raise `HttpError` if it does not exist."""
    names = tuple(part.decode("latin-1") for part in path)
    data = _all_files().get(names)
    if data is None:
        raise HttpError(404, "there is no such page")
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    return AdminResponse(pieces, _TYPES[names[-1].rpartition(".")[2]], headers={"Cache-Control": "no-cache"})
