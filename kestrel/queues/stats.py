"""What `stats` and `dump_stats` tell, in Kestrel's order, then what is ours."""

from __future__ import annotations

from kestrel.queues.figures import QueueSight, ServerSight, Stat, alias_figures, queue_figures, server_figures
from kestrel.queues.manager import QueueManager


def server_stats(manager: QueueManager, version: str, uptime_s: int) -> list[Stat]:
    """The server's own figures."""
    return server_figures(ServerSight(manager, version, uptime_s))


def stats_of(manager: QueueManager, name: bytes) -> list[Stat]:
    """The figures of that queue or alias; of a missing one, none."""
    alias = manager.aliases.get(name)
    if alias is not None:
        return alias_figures(alias)
    queue = manager.known(name)
    return [] if queue is None else queue_figures(QueueSight(queue, manager.children_of(name)))
