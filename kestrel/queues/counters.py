"""Counters of the server and of each queue."""

from __future__ import annotations


class ServerCounters:
    """Counters since the server started."""

    def __init__(self) -> None:
        self.curr_connections = 0
        self.total_connections = 0
        self.rejected_connections = 0
        self.foreign_requests = 0
        self.total_items = 0
        self.cmd_get = 0
        self.cmd_set = 0
        self.cmd_peek = 0
        self.get_hits = 0
        self.get_misses = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.queue_creates = 0
        self.queue_deletes = 0
        self.queue_expires = 0


class QueueCounters:
    """Counters of one queue since it was opened. `age_ms` is how long the last item taken had waited."""

    __slots__ = (
        "age_ms",
        "canceled_transactions",
        "create_time_ms",
        "discarded",
        "expired_items",
        "total_flushes",
        "total_items",
        "transactions",
    )

    def __init__(self, total_items: int, create_time_ms: int) -> None:
        self.total_items = total_items
        self.create_time_ms = create_time_ms
        self.expired_items = 0
        self.discarded = 0
        self.transactions = 0
        self.canceled_transactions = 0
        self.total_flushes = 0
        self.age_ms = 0
