"""The figures of one queue or alias, as `stats` and `dump_stats` list them: Kestrel's first, in its order."""

from __future__ import annotations

from contextlib import suppress

from kestrel.errors import KestrelError
from kestrel.queues.figures import QueueSight, Stat, alias_figures, queue_figures
from kestrel.queues.manager import QueueManager


def stats_of(manager: QueueManager, name: bytes) -> list[Stat]:
    """Return the figures of a queue or alias; none if it is missing. Try to open a queue that failed again."""
    alias = manager.aliases.get(name)
    if alias is not None:
        return alias_figures(alias)
    queue = manager.known(name)
    if queue is None:
        return []
    with suppress(KestrelError):
        queue.reopen()
    return queue_figures(QueueSight(queue, manager.children_of(name)))
