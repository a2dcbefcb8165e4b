"""What `stats` and `dump_stats` tell, in Kestrel's order, then what is ours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from kestrel.compiled import BUILD
from kestrel.queues.aliases import Alias
from kestrel.queues.manager import QueueManager
from kestrel.queues.queue import Queue

Stat = tuple[str, object]

_KESTRELS: Final = frozenset({"logsize", "journal_rewrites", "journal_rotations"})
"""The figures of a storage that have their place among Kestrel's; its own come last."""


def server_stats(manager: QueueManager, version: str, uptime_s: int) -> list[Stat]:
    """The server's own figures, and after them those of every queue."""
    manager.reopen_failed()
    queues = manager.all_queues()
    counters = manager.counters
    stats: list[Stat] = [
        ("uptime", uptime_s),
        ("time", manager.now_ms() // 1000),
        ("version", version),
        ("curr_items", sum(queue.contents.items for queue in queues)),
        ("total_items", counters.total_items),
        ("bytes", sum(queue.contents.bytes for queue in queues)),
        ("reserved_memory_ratio", f"{_reserved_memory_ratio(queues):.3f}"),
        ("curr_connections", counters.curr_connections),
        ("total_connections", counters.total_connections),
        ("cmd_get", counters.cmd_get),
        ("cmd_set", counters.cmd_set),
        ("cmd_peek", counters.cmd_peek),
        ("get_hits", counters.get_hits),
        ("get_misses", counters.get_misses),
        ("bytes_read", counters.bytes_read),
        ("bytes_written", counters.bytes_written),
        ("queue_creates", counters.queue_creates),
        ("queue_deletes", counters.queue_deletes),
        ("queue_expires", counters.queue_expires),
        ("build", BUILD),
    ]
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
        return alias_stats(alias)
    queue = manager.known(name)
    return [] if queue is None else queue_stats(queue, manager.children_of(name))


def alias_stats(alias: Alias) -> list[Stat]:
    """An alias's figures: what was put to it, and where that goes."""
    return [("put_items", alias.put_items), ("put_bytes", alias.put_bytes), ("children", _joined(alias.destinations))]


def queue_stats(queue: Queue, children: Sequence[bytes] = ()) -> list[Stat]:
    """One queue's figures. Sizes are bytes, ages and times milliseconds."""
    contents, counters = queue.contents, queue.counters
    journal = contents.stats
    age_ms = counters.age_ms if contents.items else 0
    return [
        ("items", contents.items),
        ("bytes", contents.bytes),
        ("total_items", counters.total_items),
        ("logsize", journal["logsize"]),
        ("expired_items", counters.expired_items),
        ("mem_items", contents.mem_items),
        ("mem_bytes", contents.mem_bytes),
        ("age", age_ms),
        ("discarded", counters.discarded),
        ("waiters", len(queue.waiting)),
        ("open_transactions", contents.open_reads),
        ("transactions", counters.transactions),
        ("canceled_transactions", counters.canceled_transactions),
        ("total_flushes", counters.total_flushes),
        ("journal_rewrites", journal["journal_rewrites"]),
        ("journal_rotations", journal["journal_rotations"]),
        *([("children", _joined(children))] if children else []),
        ("age_msec", age_ms),
        ("create_time", counters.create_time_ms),
        ("moved_items", queue.moves.moved),
        ("refused_moves", queue.moves.refused),
        *((name, value) for name, value in journal.items() if name not in _KESTRELS),
    ]


def _joined(names: Sequence[bytes]) -> str:
    return b",".join(names).decode("latin-1")


def _reserved_memory_ratio(queues: list[Queue]) -> float:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sum(queue.settings.max_memory_size_bytes for queue in queues) / memory
