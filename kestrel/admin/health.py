"""Health checks: `/health` for supervisors that restart the server, `/ready` for load balancers."""

from __future__ import annotations

from kestrel.admin.request_response import AdminRequest, AdminResponse, json_response
from kestrel.admin.server_view import ServerView
from kestrel.escaping import show_name


def health(server_view: ServerView, request: AdminRequest) -> AdminResponse:
    """Return 200 as long as the reactor runs.

    The response lists up to 100 queues whose storage has failed. They are not an error, since a restart may not help.
    """
    failed = [show_name(queue.name) for queue in server_view.manager.all_queues() if queue.store.failure]
    return json_response(
        {
            "health": "ok",
            "status": server_view.control.status.published.value,
            "ready": _why_not(server_view) is None,
            "failed_queues": failed[:100],
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
