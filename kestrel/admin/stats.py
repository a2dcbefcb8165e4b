"""The read-only calls of the original Kestrel's admin port and health checks."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from threading import enumerate as all_threads
from typing import Final

from kestrel.admin.ostrich_stats import Gathering, IntervalStats, gather_server_stats, sections
from kestrel.admin.request_response import (
    JSON,
    TEXT,
    AdminRequest,
    AdminResponse,
    HttpError,
    json_object,
    json_response,
    text_response,
)
from kestrel.admin.server_view import ServerView
from kestrel.escaping import show_name


def ping(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return "pong"."""
    return text_response("pong\n") if _wants_text(request) else json_response({"response": "pong"})


def server_info(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return the version, start time and uptime of the server."""
    uptime_s = server_view.control.uptime_s()
    started_s = server_view.manager.now_ms() / 1000 - uptime_s
    info = {
        "build": "kestrel",
        "build_branch_name": "unknown",
        "build_last_few_commits": ["unknown"],
        "build_revision": "unknown",
        "name": "kestrel",
        "start_time": time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(started_s)),
        "uptime": uptime_s * 1000,
        "version": server_view.control.version,
    }
    if not _wants_text(request):
        return json_response(info)
    return text_response("".join(f"{name}: {value}\n" for name, value in info.items()))


MAX_ANSWERS: Final = 8
"""Limit of concurrent responses about periods and namespaces, each of which may hold a copy of all statistics."""


def stats(interval_stats: IntervalStats, server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return all statistics since the start. The query may select others.

    With `period`, they are of the last complete period of that many seconds. With `namespace`, they are since the last
    request with that namespace. With `prefix`, return only the statistics whose names begin with it. The prefix has the
    bytes of a queue's name, not the shown name. Statistics since the start are read while the response is sent.
    """
    period, namespace = request.one("period"), request.one("namespace")
    prefix = show_name(request.one("prefix") or b"")
    write = _as_text if _wants_text(request) else _as_json
    content_type = TEXT if _wants_text(request) else JSON
    if period is None and namespace is None:
        return AdminResponse(write(gather_server_stats(server_view), prefix), content_type)
    # Another site's page must not use up the limited periods and namespaces.
    request.check_same_site()
    if interval_stats.answers >= MAX_ANSWERS:
        raise HttpError(503, f"too many responses with a period or namespace; limit={MAX_ANSWERS}; try again later")
    gathered = (
        interval_stats.namespace_stats(namespace or b"") if period is None else interval_stats.period_stats(period)
    )
    interval_stats.answers += 1

    def done() -> None:
        interval_stats.answers -= 1

    return AdminResponse(write(gathered, prefix), content_type, done=done)


def _wants_text(request: AdminRequest) -> bool:
    return request.path[-1].endswith(b".txt")


def _as_json(gathering: Gathering, prefix: str) -> Iterator[bytes]:
    figures = yield from gathering
    before = b"{"
    for name, parts in sections(figures, prefix):
        yield before + f'"{name}":'.encode()
        yield from json_object(parts)
        before = b","
    yield b"}"


def _as_text(gathering: Gathering, prefix: str) -> Iterator[bytes]:
    figures = yield from gathering
    for name, parts in sections(figures, prefix):
        yield f"{name}:\n".encode()
        for part in parts:
            yield "".join(f"  {key}: {_shown(value)}\n" for key, value in part.items()).encode()


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name}={number}" for name, number in value.items()) + ")"
    return str(value)


MAX_STACK_FRAMES: Final = 100


def threads(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return the name and the stack of each thread of the process."""
    frames = sys._current_frames()
    told: dict[str, dict[str, object]] = {}
    for thread in all_threads():
        frame = frames.get(thread.ident or 0)
        lines = [] if frame is None else traceback.extract_stack(frame, MAX_STACK_FRAMES)
        told[str(thread.ident)] = {
            "thread": thread.name,
            "daemon": thread.daemon,
            "stack": [f"{line.filename}:{line.lineno} {line.name}" for line in reversed(lines)],
        }
    return json_response({"threads": told})


def health(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return 200 as long as the reactor runs.

    The response lists up to 100 queues whose storage has failed, and says why the storage refuses all puts. These are
    not errors, since a restart may not help.
    """
    failed = [show_name(queue.name) for queue in server_view.manager.all_queues() if queue.store.failure]
    return json_response(
        {
            "health": "ok",
            "status": server_view.control.status.published.value,
            "ready": _why_not(server_view) is None,
            "failed_queues": failed[:100],
            "puts_refused": server_view.manager.refusal,
        }
    )


def ready(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return 200 if the queues are loaded and the status allows puts and gets, otherwise 503 with the reason."""
    why_not = _why_not(server_view)
    if why_not is None:
        return json_response({"ready": True})
    return json_response({"ready": False, "error": why_not}, 503)


def _why_not(server_view: ServerView) -> str | None:
    status = server_view.control.status
    if not server_view.is_ready():
        return "the queues are not loaded yet, or the server is shutting down"
    if not (status.published.takes_reads and status.published.takes_writes):
        return f"the server is {status.published.value}"
    return None
