"""Whether the server lives, and whether it can be sent clients: for those who restart it, and for load balancers."""

from __future__ import annotations

from kestrel.admin.asked import Answer, Asked, as_json
from kestrel.admin.watched import Watched


def health(watched: Watched, asked: Asked) -> Answer:
    """200 as long as the reactor turns. It names queues whose storage has failed, which no restart need mend."""
    failed = [queue.name.decode("latin-1") for queue in watched.manager.all_queues() if queue.store.failure]
    return as_json(
        {
            "health": "ok",
            "status": watched.control.status.published.value,
            "ready": _why_not(watched) is None,
            "failed_queues": failed[:100],
        }
    )


def ready(watched: Watched, asked: Asked) -> Answer:
    """200 if the queues are loaded and the status takes puts and gets; else 503, and why."""
    why_not = _why_not(watched)
    if why_not is None:
        return as_json({"ready": True})
    return as_json({"ready": False, "error": why_not}, 503)


def _why_not(watched: Watched) -> str | None:
    status = watched.control.status
    if not watched.is_ready():
        return "the queues are not loaded yet, or the server stops"
    if not (status.published.takes_reads and status.published.takes_writes):
        return f"the server is {status.published.value}"
    return None
