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
from kestrel.admin.connections import connections
from kestrel.admin.history import StatsHistory, history
from kestrel.admin.metrics import metrics
from kestrel.admin.ostrich_stats import IntervalStats
from kestrel.admin.request_response import AdminRequest, AdminResponse, HttpError
from kestrel.admin.server_view import ServerView

Handler: TypeAlias = Callable[..., "AdminResponse | Deferred[AdminResponse]"]
"""A handler, called with the server, the request, and the variable part of its path if there is one."""

_NAME: Final = b""
"""The variable part of a path in the tables."""

_GET: Final[Mapping[tuple[bytes, ...], Handler]] = {
    (b"health",): stats.health,
    (b"metrics",): metrics,
    (b"ping",): stats.ping,
    (b"ready",): stats.ready,
    (b"server_info",): stats.server_info,
    (b"threads",): stats.threads,
    (b"api", b"connections"): connections,
    (b"api", b"overview"): api.overview,
    (b"api", b"server"): api.server_details,
    (b"api", b"queue", _NAME): api.queue_details,
    (b"api", b"queue", _NAME, b"items"): api.items,
}
_POST: Final[Mapping[tuple[bytes, ...], Handler]] = {
    (b"gc",): api.collect_garbage,
    (b"quiesce",): partial(api.change_status, name=b"Quiescent"),
    (b"reload",): api.reload,
    (b"shutdown",): api.shutdown,
    (b"api", b"reload"): api.reload,
    (b"api", b"shutdown"): api.shutdown,
    (b"api", b"queue", _NAME, b"delete"): api.delete,
    (b"api", b"queue", _NAME, b"flush"): api.flush,
    (b"api", b"queue", _NAME, b"flush_expired"): api.flush_expired,
    (b"api", b"queue", _NAME, b"move"): api.move,
    (b"api", b"queue", _NAME, b"put"): api.put,
    (b"api", b"queue", _NAME, b"stop_move"): api.stop_move,
    (b"api", b"status", _NAME): api.change_status,
}


class Routes:
    """The handlers of one server, by method and path.

    Kestrel's calls (`/stats`, `/ping`) may end in `.json` or `.txt`.
    """

    def __init__(self, server_view: ServerView, clock: IReactorTime, cooperator: Cooperator) -> None:
        self._server_view = server_view
        self.history = StatsHistory(
            server_view.manager, clock, cooperator, lambda: server_view.config.admin.max_queue_series
        )
        self._interval_stats = IntervalStats(server_view, clock, cooperator)
        own: dict[tuple[bytes, ...], Handler] = {
            (b"stats",): partial(stats.stats, self._interval_stats),
            (b"api", b"history"): partial(history, self.history),
        }
        self._handlers: Mapping[str, Mapping[tuple[bytes, ...], Handler]] = {"GET": {**_GET, **own}, "POST": _POST}

    def start(self) -> None:
        """Start to sample the history. Called when the queues are loaded."""
        self.history.start()

    def stop(self) -> None:
        """Stop the timers of the history and of the periods."""
        self.history.stop()
        self._interval_stats.stop()

    def handle(self, request: AdminRequest) -> AdminResponse | Deferred[AdminResponse]:
        """Return the response to a request, or a Deferred of it. Raise `HttpError` if the request is refused or its
        path does not exist.
        """
        path = request.path
        names: tuple[bytes, ...] = ()
        match path:
            case (b"",) | (b"graph" | b"pages", *_):
                return _page(request)
            case (b"api", b"queue" | b"status" as kind, name, *rest):
                path, names = (b"api", kind, _NAME, *rest), (name,)
            case (call,):
                path = (call.removesuffix(b".json").removesuffix(b".txt"),)
        handler = self._handlers[request.method].get(path)
        if handler is not None:
            return handler(self._server_view, request, *names)
        other = "POST" if request.method == "GET" else "GET"
        if path in self._handlers[other]:
            _check_method(request, other)
        raise HttpError(404, "there is no such page; / has the dashboard")


def _page(request: AdminRequest) -> AdminResponse:
    """Return a file of the dashboard, or redirect Kestrel's `/graph` to it."""
    _check_method(request, "GET")
    match request.path:
        case (b"pages", *path):
            return static_file(request, *path)
        case (b"graph", *_):
            return AdminResponse((), status=302, headers={"Location": "/"})
    return static_file(request, b"index.html")


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
