"""What `stats` and `dump_stats` tell, in Kestrel's order, then what is ours."""

from __future__ import annotations

from collections.abc import Sequence

from kestrel.queues.figures import QueueSight, ServerSight, Stat, alias_figures, queue_figures, server_figures
from kestrel.queues.manager import QueueManager


def server_stats(manager: QueueManager, version: str, uptime_s: int) -> list[Stat]:
    """The server's own figures, and after them those of every queue."""
    stats = server_figures(ServerSight(manager, version, uptime_s))
    for name, figures in dumped_stats(manager, ()):
        prefix = f"queue_{name.decode('latin-1')}_"
        stats += [(prefix + figure, value) for figure, value in figures]
    return stats


def dumped_stats(manager: QueueManager, names: Sequence[bytes]) -> list[tuple[bytes, list[Stat]]]:
    """The figures of the queues and aliases of these names, or of all when none is given; of a missing one, none."""
    manager.reopen_failed()
    if not names:
        names = sorted({*(queue.name for queue in manager.all_queues()), *manager.aliases})
    return [(name, _stats_of(manager, name)) for name in dict.fromkeys(names)]


def _stats_of(manager: QueueManager, name: bytes) -> list[Stat]:
    alias = manager.aliases.get(name)
    if alias is not None:
        return alias_figures(alias)
    queue = manager.known(name)
    return [] if queue is None else queue_figures(QueueSight(queue, manager.children_of(name)))
